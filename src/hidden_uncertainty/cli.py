"""The command line, `hidden-uncertainty`. Each command lives in a module of its own, imported when it is called."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    name="hidden-uncertainty",
    help="Epistemic and aleatoric uncertainty for any trained PyTorch network, from its hidden activations.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


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

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # bars and shades, where the terminal knows only ASCII
    settings = Settings(seed=seed)
    try:
        run(out, settings.quick() if quick else settings)
    except BrokenPipeError:
        raise  # whoever read our output has gone: no error of ours
    except OSError as error:
        _stop(f"cannot write to {str(out)!r}: {error.strerror or error}. Choose another folder with --out.")


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="Which study: digits.")],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder for NAME.json.")] = Path("results"),
    seeds: Annotated[int, typer.Option(min=1, help="Repetitions.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="A rough version, in a few seconds.")] = False,
) -> None:
    """Run a study on real data and write its result file."""
    from .studies import load

    try:
        study = load(name)
    except ValueError as error:
        _stop(str(error))
    options = f" --seeds {seeds}" * (seeds != 5) + " --quick" * quick
    try:
        path = study(seeds=range(seeds), quick=quick).write(out, f"hidden-uncertainty reproduce {name}{options}")
    except OSError as error:
        _stop(f"cannot write to {str(out)!r}: {error.strerror or error}. Choose another folder with --out.")
    typer.echo(f"written: {path}")


def _stop(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)
