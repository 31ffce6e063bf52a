"""What all commands for one's own model are given: their options, and the network."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from .terminal import expand, plainly, prepare

if TYPE_CHECKING:
    from torch import nn

    Listed = Any  # a list, once `listed` or `numbers` has seen it
else:
    Listed = str | None

INPUTS = ("data", "weights", "detector", "unseen", "train")  # which no command replaces
NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints of training runs keep weights


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
    return typer.Option(default, *flags, help=text, show_default=type(default) in (int, float), **more)


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
    label: Listed = _table("Columns or array of labels. Default: y in .npz, none in .csv.", callback=listed)
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
    if isinstance(found, dict):
        found = next((found[key] for key in NESTED if isinstance(found.get(key), dict)), found)
    if not isinstance(found, dict):
        raise ValueError(f"'{path}' holds {type(found).__name__}, not a state_dict: save model.state_dict().")
    return found
