"""The command line, `hidden-uncertainty`. Each command lives in a module of its own, imported when it is called."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, NoReturn

import typer

DATA = "HIDDEN_UNCERTAINTY_DATA"

app = typer.Typer(
    name="hidden-uncertainty",
    help="Epistemic and aleatoric uncertainty for any trained PyTorch network, from its hidden activations.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)

data_app = typer.Typer(help="Image data sets: what there is, what is here, fetching, checking.", no_args_is_help=True)
app.add_typer(data_app, name="data")
Root = Annotated[Path | None, typer.Option(file_okay=False, help="Folder that holds the data sets.", envvar=DATA)]
Name = Annotated[str, typer.Argument(help="Which data set; `data list` names them.")]
_WHERE = "results, or with --quick results/quick, if not said"


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        typer.echo(f"hidden-uncertainty {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options that come before a command."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for demo.png and demo.json.")] = Path(
        "demo-output"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another split, network and noise.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="A rough version, in a few seconds.")] = False,
) -> None:
    """Train a small network on digits and show that it knows what it does not know; under a minute."""
    from .demo import Settings, run

    _any_character()
    settings = Settings(seed=seed)
    try:
        run(out, settings.quick() if quick else settings)
    except BrokenPipeError:
        raise  # whoever read our output has gone: no error of ours
    except OSError as error:
        _cannot_write(out, error)


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="Which study: digits, compare-digits, toy-regression, uci, table-1-fcnet, table-1-resnet, "
            "layer-depth, regularisation, segmentation, depth-estimation."
        ),
    ],
    out: Annotated[Path | None, typer.Option(file_okay=False, help=f"Folder for NAME.json; {_WHERE}.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions; a study has its own number.")] = None,
    data: Root = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A rough version, in seconds or minutes, with one repetition.")
    ] = False,
) -> None:
    """Run a study on real data and write its result file."""
    if data is not None:
        os.environ[DATA] = str(data)
    _run(name, out, seeds, quick)


@app.command()
def compare(
    out: Annotated[Path | None, typer.Option(file_okay=False, help=f"Folder for file and picture; {_WHERE}.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions, five if not said.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A rough version, in a few seconds, with one repetition.")
    ] = False,
) -> None:
    """Compare methods on digits: how well each detects and what it costs; about two minutes."""
    from .studies.compare_digits import read

    path = _run("compare-digits", out, seeds, quick)
    typer.echo(read(json.loads(path.read_text(encoding="utf-8"))))


@data_app.command("list")
def data_list(root: Root = None) -> None:
    """List data sets, their size and terms, and which are here."""
    from .datasets.images import listing

    for entry in listing(root):
        found = {"all": "here", "some": "in part", "none": "-", None: "?"}[entry.found]
        typer.echo(f"{entry.name:13}{found:9}{entry.megabytes:5} MB  {entry.contents}  ({entry.terms})")


@data_app.command("fetch")
def data_fetch(name: Name, root: Root = None) -> None:
    """Download a data set from where it is published."""
    from .datasets.images import fetch

    try:
        written = fetch(name, root)
    except (ImportError, OSError, ValueError) as error:
        _stop(str(error))
    for path in written:
        typer.echo(f"written: {path}")
    if not written:
        typer.echo(f"{name} is complete: nothing to fetch.")


@data_app.command("verify")
def data_verify(name: Name, root: Root = None) -> None:
    """Compare a data set with its published checksums; fails unless all is as published."""
    from .datasets.images import verify

    try:
        checks = verify(name, root)
    except (OSError, ValueError) as error:
        _stop(str(error))
    for check in checks:
        typer.echo(f"{check.state:10}{check.path}")
    if any(check.state != "official" for check in checks):
        raise typer.Exit(1)


def _run(name: str, out: Path | None, seeds: int | None, quick: bool) -> Path:
    """Run a study and write what it found."""
    from .studies import load

    _any_character()
    # Networks side by side on a GPU queue behind each other with fewer; read when a process first uses the GPU.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    try:
        study = load(name)
    except ValueError as error:
        _stop(str(error))
    out = out or Path("results") / ("quick" * quick)
    asked = {} if seeds is None else {"seeds": range(seeds)}
    options = f" --seeds {seeds}" * (seeds is not None) + " --quick" * quick
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()  # before any hour is spent
    except OSError as error:
        _cannot_write(out, error)
    try:
        found = study(**asked, quick=quick)
    except (ImportError, OSError, ValueError) as error:
        _stop(str(error))
    try:
        path = found.write(out, f"hidden-uncertainty reproduce {name}{options}")
    except OSError as error:
        _cannot_write(out, error)
    typer.echo(f"written: {path}")
    return path


def _any_character() -> None:
    """Let signs pass that the terminal does not know: bars and shades, ± and ×."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _cannot_write(out: Path, error: OSError) -> NoReturn:
    _stop(f"cannot write to {str(out)!r}: {error.strerror or error}. Choose another folder with --out.")


def _stop(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
