"""`python -m reproduction NAME` runs a study, from the root of a clone; `python -m reproduction data` gets data."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hidden_uncertainty.cli.given import expand, prepare, stop, writing_to
from hidden_uncertainty.notes import logger

from .studies import NAMES, load

DATA = "HIDDEN_UNCERTAINTY_DATA"
Root = Annotated[
    Path | None,
    typer.Option("--data", file_okay=False, callback=expand, help="Folder that holds the data sets.", envvar=DATA),
]
Name = Annotated[str, typer.Argument(help="Which data set; `data list` names them.")]


class Studies(TyperGroup):
    """Commands of which the studies are listed when an unknown one is asked for."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command by its name."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            try:
                load(args[0])
            except ValueError as error:
                stop(str(error))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Studies,
    help="Studies on real data. Each one writes a result file, NAME.json, and its pictures.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    add_completion=False,
)
data_app = typer.Typer(help="Image data sets: list, download and check them.", no_args_is_help=True)
app.add_typer(data_app, name="data")


Out = Annotated[
    Path | None,
    typer.Option(
        file_okay=False, callback=expand, help="Folder for the result: results, or results/quick with --quick."
    ),
]
Seeds = Annotated[int | None, typer.Option(min=1, max=1000, help="Repetitions; each study has its own default.")]
Quick = Annotated[bool, typer.Option("--quick", help="A rough version with one repetition, in seconds or minutes.")]
Families = Annotated[
    str | None,
    typer.Option(help="Which networks, separated by commas, '' for none; others in an earlier result are kept."),
]

Earlier = Annotated[
    list[Path] | None,
    typer.Option(dir_okay=False, exists=True, help="Another earlier result, of which networks are taken too."),
]


KeepPapers = Annotated[
    bool,
    typer.Option(help="Keep what the paper's setting showed on the same networks in the earlier results."),
]


Only = Annotated[
    list[str] | None,
    typer.Option(
        help="A rival, or 'check NAME', as often as wanted, '' for none; others in an earlier result are kept."
    ),
]


def _command(name: str) -> Callable[..., None]:
    def study(out: Out = None, seeds: Seeds = None, data: Root = None, quick: Quick = False) -> None:
        _run(name, out, seeds, data, quick)

    return study


def _one_score(
    out: Out = None,
    seeds: Seeds = None,
    data: Root = None,
    quick: Quick = False,
    families: Families = None,
    earlier: Earlier = None,
    keep_papers: KeepPapers = False,
) -> None:
    asked: dict[str, Any] = {} if families is None else {"families": [name for name in families.split(",") if name]}
    asked["keep_papers"] = keep_papers
    if not quick:
        asked["earlier"] = [(out or Path("results")) / "one-score.json", *(earlier or [])]
    options = f" --families {families}" * (families is not None) + " --keep-papers" * keep_papers
    _run("one-score", out, seeds, data, quick, asked, options)


def _rivals(
    out: Out = None,
    seeds: Seeds = None,
    data: Root = None,
    quick: Quick = False,
    only: Only = None,
    earlier: Earlier = None,
) -> None:
    asked: dict[str, Any] = {} if only is None else {"only": [name for name in only if name]}
    before = [] if quick or only is None else [(out or Path("results")) / "rivals.json"]
    _run("rivals", out, seeds, data, quick, {**asked, "earlier": [*before, *(earlier or [])]})


def _run(
    name: str,
    out: Path | None,
    seeds: int | None,
    data: Path | None,
    quick: bool,
    more: Mapping[str, Any] | None = None,
    options: str = "",
) -> None:
    if data is not None:
        os.environ[DATA] = str(data)
    prepare()
    # With fewer, networks side by side on a GPU queue behind each other; read when a process first uses the GPU.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    out = out or Path("results") / ("quick" * quick)
    asked: dict[str, Any] = {**({} if seeds is None else {"seeds": range(seeds)}), **(more or {})}
    options = f" --seeds {seeds}" * (seeds is not None) + " --quick" * quick + options
    with writing_to(out):
        try:
            found = load(name)(**asked, quick=quick)
        except (ImportError, OSError, ValueError) as error:
            stop(str(error))
        path = found.write(out, f"python -m reproduction {name}{options}")
    typer.echo(f"written: {path}")


_OWN: dict[str, Callable[..., None]] = {"one-score": _one_score, "rivals": _rivals}  # they can be run in parts
for _name, _about in NAMES.items():
    app.command(_name, help=_about)(_OWN.get(_name) or _command(_name))


@data_app.command("list")
def data_list(root: Root = None) -> None:
    """List data sets, their size and terms, and which are here (`-` none, `?` where no folder is known)."""
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
        stop(str(error))
    for path in written:
        typer.echo(f"written: {path}")
    if not written:
        typer.echo(f"{name} is complete: nothing to fetch.")


@data_app.command("verify")
def data_verify(name: Name, root: Root = None) -> None:
    """Compare a data set with its published checksums; fails unless all files are as published."""
    from .datasets.images import verify

    try:
        checks = verify(name, root)
    except (OSError, ValueError) as error:
        stop(str(error))
    for check in checks:
        typer.echo(f"{check.state:10}{check.path}")
    if any(check.state != "official" for check in checks):
        raise typer.Exit(1)


if __name__ == "__main__":
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)
    app(prog_name="python -m reproduction")
