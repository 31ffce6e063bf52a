"""What commands share: options, the network, and what is said where: single lines on stderr, and exit codes."""

from __future__ import annotations

import functools
import inspect
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, NoReturn, get_type_hints

import typer

if TYPE_CHECKING:
    from torch import nn

    Listed = Any  # a list, once `listed` or `numbers` has seen it
else:
    Listed = str | None

INPUTS = ("data", "weights", "detector", "unseen", "train")  # which no command replaces
NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints of training runs keep weights
EXPECTED = (ImportError, OSError, RuntimeError, TypeError, ValueError)  # their text says enough, without their name
OPTIONS = {"layers(model, example)": "hidden-uncertainty layers", "calibration=": "--unseen"}  # as messages call them
OPTIONS |= {"task='": "'--task ", "task= ": "--task ", "layers=": "--layers"}


def prepare() -> None:
    """Replace characters that the terminal cannot print instead of failing on them; draw to files, never to windows.

    To be called before matplotlib is imported, which fails where MPLBACKEND names a backend that is not there.
    """
    os.environ["MPLBACKEND"] = "agg"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def expand(path: Path | None) -> Path | None:
    """Replace a leading ~ of an option, which not every shell does; for `typer.Option(callback=expand)`."""
    try:
        return path and path.expanduser()
    except RuntimeError:
        raise typer.BadParameter(f"there is no home directory for {str(path)!r}: write out the path.") from None


@contextmanager
def writing_to(out: Path) -> Iterator[None]:
    """Make a folder, check that files can be written to it, and stop with one line where that fails, now or later."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()  # before the work, not after it
        yield
    except BrokenPipeError:
        raise  # the reader of the output has gone, which says nothing about the folder
    except OSError as error:
        stop(f"cannot write to {str(out)!r}: {error.strerror or error}. Choose another folder with --out.")


def stop(message: str) -> NoReturn:
    """End the command with one line on stderr and exit code 1."""
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(1)


def listed(text: str | None) -> list[str] | None:
    """What an option with commas lists."""
    return None if text is None else [part.strip() for part in text.split(",")]


def numbers(text: str | None) -> list[float] | None:
    """The same of one number or three."""
    try:
        found = None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if found is not None and len(found) not in (1, 3):
        raise typer.BadParameter(f"expected one number, or three with commas between them, not {text!r}.")
    return found


def option(text: str, default: Any = None, flags: tuple[str, ...] = (), **more: Any) -> Any:
    """An option of a command; `...` as its default makes it required."""
    return typer.Option(default, *flags, help=text, show_default=type(default) in (int, float, str), **more)


_image = functools.partial(option, rich_help_panel="Images")
_table = functools.partial(option, rich_help_panel="Tables and classes")


@dataclass
class Given:
    """The options that all commands for one's own model share."""

    model: str = option("What makes the network: package.module:factory or file.py:factory.", ...)
    weights: Path | None = option("Its state_dict. Default: weights as the factory makes them.", callback=expand)
    data: str = option("A folder of images, an .npz or .csv file, or module:factory of a loader.", ...)
    size: tuple[int, int] | None = _image("Resize to this height and width. Default: as they are.", metavar="H W")
    mean: Listed = _image("Subtracted from pixels in [0, 1]: one number or R,G,B. Default: 0.", callback=numbers)
    std: Listed = _image("What they are then divided by. Default: 1.", callback=numbers)
    grey: bool | None = _image("Read one channel, or three. Default: --rgb.", flags=("--grey/--rgb",))
    skip_broken: bool = _image("Leave out files that cannot be read.", False, ("--skip-broken",))
    label: str | None = _table("Column or array of labels. Default: y in .npz, none in .csv.")
    columns: Listed = _table("Columns that the network reads, a,b,c. Default: all others.", callback=listed)
    classes: Listed = _table("The classes in the network's order, a,b,c. Default: sorted.", callback=listed)
    batch: int = option("Inputs per batch.", 64, min=1)
    device: str | None = option("Such as cpu or cuda:0. Default: cuda where there is one.")
    debug: bool = option("Show the traceback of an error.", False, ("--debug",))

    def network(self) -> nn.Module:
        """The network with its weights, on the device, in evaluation mode."""
        import torch

        made = make(self.model, torch.nn.Module)
        if not isinstance(made, torch.nn.Module):
            raise TypeError(f"--model {self.model} gave {type(made).__name__}: expected a torch.nn.Module.")
        if self.weights is not None:
            try:
                made.load_state_dict(_weights(self.weights))
            except RuntimeError as error:
                reason = str(error).partition(":")[2] or str(error)
                raise ValueError(f"'{self.weights}' does not fit {type(made).__name__}: {reason}") from error
        return made.to(self.device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Given` to those of a command, and have it end with one line where anything fails."""
    hints, keyword = get_type_hints(Given), inspect.Parameter.KEYWORD_ONLY
    shared = [inspect.Parameter(f.name, keyword, default=f.default, annotation=hints[f.name]) for f in fields(Given)]
    own = [one.replace(kind=keyword) for one in inspect.signature(function, eval_str=True).parameters.values()][1:]

    @functools.wraps(function)
    def run(**options: Any) -> None:
        prepare()
        given = Given(**{one.name: options.pop(one.name) for one in shared})
        with plainly(given.debug):
            every = vars(given) | options
            for name in INPUTS if every.get("out") else ():
                if every.get(name) and Path(every[name]).expanduser().resolve() == every["out"].resolve():
                    raise ValueError(f"--out names the file that --{name} names, which would be lost: choose another.")
            function(given, **options)

    every = [*shared[:3], *own, *shared[3:]]
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in every}
    return run


def make(name: str, ready: type) -> Any:
    """What the factory `module:name` or `file.py:name` returns; what is `ready` already is taken as it is."""
    place, _, attribute = name.rpartition(":")
    if not place or not attribute:
        raise ValueError(f"{name!r} names no factory: expected package.module:factory or file.py:factory.")
    try:
        found = attrgetter(attribute)(_module(place))
    except Exception as error:
        raise ImportError(f"cannot import {attribute!r} from {place!r}: {type(error).__name__}: {error}") from error
    if isinstance(found, ready) or not callable(found):
        return found
    try:
        return found()
    except Exception as error:
        raise RuntimeError(f"{name} raised {type(error).__name__}: {error}") from error


def _module(place: str) -> Any:
    """A module by its name, also from the current folder, or of a file, which may import its neighbours."""
    path = Path(place).expanduser().resolve()
    file = path.suffix == ".py"
    if (folder := str(path.parent if file else Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    module = import_module(path.stem if file else place)
    if file and module.__file__ != str(path):
        raise ImportError(f"{path.stem!r} is the name of another module, {module}: rename the file")
    return module


def _weights(path: Path) -> dict[str, Any]:
    """The tensors of a file, none of whose content is executed."""
    import torch
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"there is no file '{path}': give --weights a file with a state_dict.")
    try:
        found: Any = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:
        if type(error).__name__ == "UnpicklingError":
            raise ValueError(
                f"'{path}' holds more than tensors, or is damaged. It is not loaded, as such files can run code: save "
                "weights with torch.save(model.state_dict(), path)."
            ) from error
        raise ValueError(f"'{path}' cannot be read as weights: {type(error).__name__} {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"'{path}' holds {type(found).__name__}, not a state_dict: save model.state_dict().")
    return next((found[key] for key in NESTED if isinstance(found.get(key), dict)), found)


@contextmanager
def plainly(debug: bool) -> Iterator[None]:
    """Show notes, warnings and errors of a block as one line each; `debug` lets errors through, with their traceback.

    A reader of stdout that has seen enough, such as `head`, ends the command without an error.
    """
    logger, handler = logging.getLogger("hidden_uncertainty"), logging.StreamHandler(sys.stderr)
    handler.format = lambda record: f"note: {_line(record.getMessage())}"  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: typer.echo(f"warning: {_line(message)}", err=True)
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left has nowhere to go
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if debug:
            raise
        text, enough = _line(error), isinstance(error, EXPECTED) and str(error)
        stop(text if enough else f"{type(error).__name__}: {text} (--debug shows where)")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _line(message: Any, longest: int = 1000) -> str:
    text = " ".join(str(message).split())
    for argument, option in OPTIONS.items():
        text = text.replace(argument, option)
    return text if len(text) <= longest else f"{text[:longest]}…"
