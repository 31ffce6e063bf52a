"""The command line, `hidden-uncertainty`. What a command runs is imported when it is called."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import typer

from ..version import __version__
from .given import Given, Listed, command, expand, listed, option, prepare, writing_to

if TYPE_CHECKING:
    from ..detector import Detector

app = typer.Typer(
    name="hidden-uncertainty",
    help="Epistemic and aleatoric uncertainty for any trained PyTorch network, from its hidden activations.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
KEPT = ("size", "mean", "std", "grey", "label", "columns", "classes")  # what a detector's file says of its data
Tasks = Enum("Tasks", {name: name for name in ("classification", "regression", "multi-label")})  # type: ignore[misc]
OWN = "Your own model"  # heading of the commands for it
DETECTOR = option("The file that `fit` wrote.", ..., callback=expand)
FEW = 0.5  # a network that is right less often than this on unseen data may have its classes in another order


def _out(text: str, default: Any = ...) -> Any:
    return option(text, default, callback=_checked, dir_okay=False)


def _checked(out: Path | None) -> Path | None:
    """A file that can be written, which is found before the work and not after it."""
    if (out := expand(out)) is not None:
        with writing_to(out.parent):
            pass
    return out


@app.command(rich_help_panel=OWN)
@command
def layers(given: Given) -> None:
    """List the network's layers, and mark those that `fit` reads if you name none.

    Example: hidden-uncertainty layers --model net.py:Net --weights net.pt --data photos/train
    """
    from ..latent import suggest
    from ..model.layers import layers as list_layers
    from .data import read

    model = given.network()
    example = read(given, given.data, model).example(model)
    tree, choices = list_layers(model, example, show=False), suggest(model, [example])
    chosen = {choice.layer for choice in choices}
    marks = ["  ", *("* " if entry.name in chosen else "  " for entry in tree)]
    for mark, line in zip(marks, str(tree).splitlines(), strict=True):
        typer.echo(mark + line)
    typer.echo(f"\n* is read if you name no layers; where the network predicts numbers, the last alone:\n{choices}")


@app.command(rich_help_panel=OWN)
@command
def fit(
    given: Given,
    unseen: str | None = option("Data of the same kind that the network was not trained on, for the threshold."),
    holdout: float | None = option("Without unseen data: the share of --data to set apart, without a guarantee."),
    out: Path = _out("The file to write, such as detector.safetensors."),
    layers: Listed = option("Layers to read, a,b,c, as `layers` lists them. Default: found.", callback=listed),
    false_alarm: float = option("The share of inputs like the unseen ones that may be called surprising.", 0.05),
    task: Tasks | None = option("What the network predicts. Default: found, unless in doubt."),
    seed: int = option("Of random projections.", 0, min=0),
) -> None:
    """Fit a detector to the data that the network was trained on, and write it to a file.

    The file remembers how data were read: `score` and the others need not be told again.

    Example: hidden-uncertainty fit --model net.py:Net --weights net.pt --data photos/train --unseen photos/unseen
    --size 32 32 --out detector.safetensors
    """
    from .. import io
    from ..latent import LatentDensity
    from .data import read

    if (unseen is None) == (holdout is None):
        raise typer.BadParameter("give either --unseen DATA, or --holdout SHARE if there are none.")
    model = given.network()
    train = read(given, given.data, model, fitting=True)
    train.example(model)
    given.classes, given.columns = train.classes, train.columns
    others = None if unseen is None else read(given, unseen, model, fitting=True)
    combine = "fisher" if layers is not None and len(layers) > 1 else None
    detector = LatentDensity(model, layers or "auto", combine=combine, task=task and task.value, seed=seed)
    threshold = detector.fit(train, others, holdout=holdout).threshold(false_alarm)
    _check_labels(detector, train.classes)
    with TemporaryDirectory() as folder:
        detector.save(Path(folder) / "detector")
        header, tensors = io.read(Path(folder) / "detector")
    known = {name: getattr(given, name) for name in KEPT}
    io.write(out, {**header, "reading": known | {"size": given.size and [*given.size]}}, tensors)
    typer.echo(f"read: {', '.join(detector.layers)}")
    promise = "at most {:.3g} of inputs like the unseen" if holdout is None else "about {:.3g} of the part set apart"
    typer.echo(f"surprising: epistemic above {threshold:.4g}, for {promise.format(false_alarm)}")
    typer.echo(f"written: {out}")


@app.command(rich_help_panel=OWN)
@command
def score(
    given: Given,
    detector: Path = DETECTOR,
    out: Path | None = _out("A .csv, .jsonl or .parquet file. Default: CSV to stdout.", None),
    false_alarm: float | None = option("Another rate than that of the fit."),
    fail_on_surprising: bool = option("Exit code 3 if any input is surprising.", False, ("--fail-on-surprising",)),
) -> None:
    """Score data: one row per input, with its file name, or its number counted from 0.

    Columns: input, prediction, class (where classes have names), epistemic, aleatoric, p_value, surprising. Scores are
    higher when more uncertain; a p_value is lower when more surprising.

    Example: hidden-uncertainty score --model net.py:Net --weights net.pt --detector detector.safetensors
    --data photos/new --out scores.csv
    """
    from .data import FORMATS, read, write

    if out is not None and out.suffix not in FORMATS:
        raise typer.BadParameter(f"{str(out)!r} must end in one of {', '.join(FORMATS)}.", param_hint="--out")
    target = out or sys.stdout
    with redirect_stdout(sys.stderr):  # what a network prints is no row
        loaded = _load(given, detector)
        if false_alarm is not None:
            loaded.threshold(false_alarm)
        data = read(given, given.data, loaded.model)
        if data.shuffled:
            raise ValueError(f"{given.data} shuffles, so rows would not say what they are about: give shuffle=False.")
        data.example(loaded.model)
        surprising = write(loaded, data, given.classes, target)
    typer.echo(f"{sum(surprising):,} of {len(surprising):,} inputs are surprising", err=True)
    if out is not None:
        typer.echo(f"written: {out}")
    if fail_on_surprising and any(surprising):
        raise typer.Exit(3)


@app.command(rich_help_panel=OWN)
@command
def report(
    given: Given,
    detector: Path = DETECTOR,
    out: Path = _out("The page to write, such as report.html."),
    outliers: list[str] = option("Data that should be surprising; may be given several times.", []),
    train: str | None = option("What the network was trained on, to compare with."),
) -> None:
    """Write one HTML page about a detector, with unseen data of the kind that it was fitted to.

    Example: hidden-uncertainty report --model net.py:Net --weights net.pt --detector detector.safetensors
    --data photos/test --outliers photos/odd --out report.html
    """
    from ..reporting import report as write_page
    from .data import read

    loaded = _load(given, detector)
    data = read(given, given.data, loaded.model)
    others = {name: read(given, name, loaded.model) for name in outliers}
    before = None if train is None else read(given, train, loaded.model)
    sets = {"in distribution": data, **others}
    names = {key: own for key, one in sets.items() if (own := [name for some, _ in one.named() for name in some or ()])}
    write_page(loaded, data, out, outliers=others, train=before, names=names, classes=given.classes)
    typer.echo(f"written: {out}")


@app.command(rich_help_panel=OWN)
@command
def export(given: Given, detector: Path = DETECTOR, out: Path = _out("The file to write, such as model.onnx.")) -> None:
    """Write the network with its uncertainty as one ONNX file; the first batch of --data is the example.

    Example: hidden-uncertainty export --model net.py:Net --weights net.pt --detector detector.safetensors
    --data photos/unseen --out model.onnx
    """
    from ..exporting import export as write_graph
    from .data import read

    loaded = _load(given, detector)
    write_graph(loaded, read(given, given.data, loaded.model).example(loaded.model), out)
    typer.echo(f"written: {out}")


def _load(given: Given, path: Path) -> Detector:
    from .. import io
    from ..detector import Detector

    known = io.read(path)[0].get("reading", {})
    for name in KEPT:
        if getattr(given, name) is None:  # as for the fit, where the command line does not say otherwise
            setattr(given, name, known.get(name))
    return Detector.load(path, given.network())


def _check_labels(detector: Detector, classes: list[str] | None) -> None:
    """Warn where labels and predictions hardly agree, as they do if the classes are counted in another order."""
    from ..notes import warn

    known = detector.head.selection if detector.head else None
    if classes and known is not None and (right := 1 - float(known.errors.mean())) < FEW:
        warn(
            f"the network is right on only {right:.0%} of the unseen inputs. Classes are counted in this order: "
            f"{', '.join(classes)}. If the network's order is another, give it with --classes."
        )


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hidden-uncertainty {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: bool = option("Print the version and stop.", False, ("--version",), callback=_version, is_eager=True),
) -> None:
    """Options that come before a command."""


@app.command()
def demo(
    out: Path = option("Folder for demo.png.", "demo-output", file_okay=False, callback=expand),
    seed: int = option("Seed of the split, the network and the noise.", 0, min=0, max=2**63 - 1),
    quick: bool = option("A rough version that takes a few seconds.", False, ("--quick",)),
) -> None:
    """Train a small network on digits and show that it knows what it does not know; under a minute."""
    prepare()
    from ..demo.show import run

    with writing_to(out):
        run(out, seed=seed, quick=quick)
