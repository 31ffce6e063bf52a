"""`detector.compile()`: the graph of network and uncertainty, compiled for this process."""

from __future__ import annotations

import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any

import torch

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
            found = self._run(*tensors_of(batch))
        found.pop("surprising", None)
        return Uncertainty(threshold=self._fitted.threshold, **found)

    def _make(self, batch: Any) -> Any:
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


def compiled(detector: Any) -> Compiled:
    """A scorer that runs network and uncertainty as one compiled graph: for services that score few inputs at a time.

    It needs a C++ compiler, and compiles at its first call, for inputs of that call's size in any number.
    """
    return Compiled(detector)
