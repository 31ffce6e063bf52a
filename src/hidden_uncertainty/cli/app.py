"""The command line, `hidden-uncertainty`. What a command runs is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import own
from .terminal import expand, prepare, writing_to

app = typer.Typer(
    name="hidden-uncertainty",
    help="Epistemic and aleatoric uncertainty for any trained PyTorch network, from its hidden activations.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
for command in (own.layers, own.fit, own.score, own.report, own.export):
    app.command(rich_help_panel="Your own model")(command)
Quick = Annotated[bool, typer.Option("--quick", help="A rough version that takes a few seconds.")]


def _version(wanted: bool) -> None:
    if wanted:
        from ..version import __version__

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
    out: Annotated[
        Path, typer.Option(file_okay=False, callback=expand, help="Folder for demo.png and demo.json.")
    ] = Path("demo-output"),
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the split, the network and the noise.")] = 0,
    quick: Quick = False,
) -> None:
    """Train a small network on digits and show that it knows what it does not know; under a minute."""
    prepare()
    from ..demo.show import Settings, run

    settings = Settings(seed=seed)
    with writing_to(out):
        run(out, settings.quick() if quick else settings)


@app.command()
def compare(
    out: Annotated[
        Path, typer.Option(file_okay=False, callback=expand, help="Folder for comparison.json and comparison.png.")
    ] = Path("compare-output"),
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Repetitions; --quick runs one.")] = 5,
    quick: Quick = False,
) -> None:
    """Compare all methods on digits: how well each detects and what it costs; about two minutes."""
    prepare()
    from .. import plots
    from ..demo.methods import run

    with writing_to(out):
        found = run(seeds=range(seeds), quick=quick)
        written = found.save(out / "comparison.json"), plots.save(found.plot(), out / "comparison.png")
    typer.echo(found)
    for path in written:
        typer.echo(f"written: {path}")
