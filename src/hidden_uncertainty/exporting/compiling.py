"""`detector.compile()`: the graph of network and uncertainty, compiled for this process."""

from __future__ import annotations

import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..abilities import require
from ..uncertainty import Uncertainty
from .program import first_line, tensors_of, traced

FREEZE = {"freezing": True}  # weights as the processor's products read them


class Compiled:
    """A scorer of one detector, made by `Detector.compile`; it gives what the detector gives, without its layers.

    It is compiled at the first call, which takes from seconds to minutes, for inputs of that size in any number. What
    the detector learns later, and a threshold that is set later, it does not know.
    """

    def __init__(self, detector: Any) -> None:
        require(detector, "export")
        self._detector, self._fitted = detector, detector._fitted()  # as it is now
        self._run: Any = None
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Uncertainty:
        """Score inputs, as the detector does."""
        batch = self._detector.reader.called(*args, **kwargs)
        with torch.no_grad():
            if self._run is None:
                with self._lock:
                    self._run = self._run or self._make(batch)
            self._check(batch)
            found = self._run(*tensors_of(batch))
        found.pop("surprising", None)
        return Uncertainty(threshold=self._fitted.threshold, **found)

    def _check(self, batch: Any) -> None:
        """Raise where inputs are not as compiled: the code would not notice, and read beyond their memory."""
        (known, others), size = self._known, batch.size
        expected = [(kind, device, (size, *shape[1:]) if rows else shape) for kind, device, shape, rows in known]
        tensors, given = _seen(batch)
        found = [part[:3] for part in tensors]
        if (found, given) != (expected, others):
            raise ValueError(
                f"this scorer was compiled for {_told(expected, others)}; got {_told(found, given)}. Inputs of another "
                "size or type need a scorer of their own: detector.compile()."
            )

    def _make(self, batch: Any) -> Any:
        self._known = _seen(batch)
        program = traced(self._detector, self._fitted, batch, "spread")
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            package = str(Path(folder) / "graph.pt2")
            try:
                made = torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=FREEZE)
            except Exception as error:
                raise RuntimeError(
                    f"torch could not compile the graph. {first_line(error)} compile() needs a C++ compiler such as "
                    "g++; export needs none."
                ) from error
            return torch._inductor.aoti_load_package(made)


def _seen(batch: Any) -> tuple[list[Any], list[Any]]:
    """Type, device, shape of each tensor and whether it has a row per input; what else is a part of the code."""
    size, tensors = batch.size, tensors_of(batch)
    rows = [(part.dtype, part.device, tuple(part.shape), part.shape[:1] == (size,)) for part in tensors]
    return rows, [
        part for part in pytree.tree_leaves((batch.args, batch.kwargs)) if isinstance(part, int | float | str)
    ]


def _told(tensors: list[Any], others: list[Any]) -> str:
    return ", ".join([f"{kind} {shape} on {device}" for kind, device, shape in tensors] + [repr(one) for one in others])


def compiled(detector: Any) -> Compiled:
    """A scorer that runs network and uncertainty as one compiled graph: for services that score few inputs at a time.

    It needs a C++ compiler, and compiles at its first call, for inputs of that call's size in any number.
    """
    return Compiled(detector)
