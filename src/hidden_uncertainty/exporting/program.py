"""`export` and `Compiled`: the network and its uncertainty as one graph, for torch, ONNX runtimes or this process."""

from __future__ import annotations

import inspect
import json
import logging
import os
import tempfile
import threading
import warnings
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ..abilities import require
from ..arrays import to_array
from ..extract import Extractor, PixelExtractor
from ..model.batches import Batch, leaves
from ..model.capture import find
from ..notes import note
from ..scoring.fitted import Fitted
from ..uncertainty import Uncertainty
from ..version import __version__
from .graph import Coverage, Graph, PixelGraph

NEEDED = "pip install 'hidden-uncertainty[onnx]'"
CLOSE = 1e-3  # of a score: what a file may differ by from the detector, with which it shares no kernel
LARGEST = 1 << 31  # bytes that one file of this format can hold: larger graphs have their weights beside them


def export(
    detector: Any, example: Any, path: str | PathLike[str] | None = None, *, coverage: float | None = 0.9
) -> ExportedProgram:
    """The network with its prediction, uncertainty, p-value and decision as one graph of a dynamic batch.

    The graph's outputs, by name: `prediction`, `epistemic`; `aleatoric` where the method tells it; `p_value` where the
    detector is calibrated, `surprising` where it has a threshold; for numbers `lower` and `upper`, where it was
    calibrated with labels; `probabilities` where the detector tells them. Only the number of inputs may differ from the
    example's: images and texts keep its size. The graph holds the network's weights, and the calibration scores.

    Args:
        detector: fitted.
        example: one batch, as a loader gives it.
        path: also write the graph to this file, for ONNX runtimes, and compare it with the detector on the example
            where onnxruntime is installed. A file that was there is replaced in one step, or stays if anything fails.
        coverage: of `lower` and `upper`; None leaves them out.

    Example:
        >>> from hidden_uncertainty import LatentDensity
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        >>> x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
        >>> detector = LatentDensity(model, "0", task="classification").fit([x[:400]], calibration=[x[400:]])
        >>> program = export(detector, x[:2])
        >>> sorted(program.module()(x[:50]))
        ['aleatoric', 'epistemic', 'p_value', 'prediction']
    """
    if path is not None:
        _require_onnx(Path(path))
    require(detector, "export")
    batch = detector.reader.called(example)
    fitted = detector._fitted()
    program = _traced(detector, fitted, batch, coverage)
    if path is not None:
        _write(detector, fitted, program, batch, Path(path), coverage)
    return program


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
        with self._lock:
            self._run = self._run or self._make(batch)
        expected, given = _told(self._known, batch.size), _told(batch, batch.size)
        if given != expected:  # the code would not notice, and read beyond their memory
            raise ValueError(
                f"this scorer was compiled for {expected}; got {given}. Inputs of another size or type need a scorer "
                "of their own: detector.compile()."
            )
        with torch.no_grad():
            found = self._run(*_tensors_of(batch))
        found.pop("surprising", None)
        return Uncertainty(threshold=self._fitted.threshold, **found)

    def _make(self, batch: Batch) -> Any:
        self._known = batch[:0].clone()  # with no row of what has one per input
        program = _traced(self._detector, self._fitted, batch, "spread")
        with tempfile.TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings(action="ignore"):
            path, settings = str(Path(folder) / "graph.pt2"), {"freezing": True}
            try:
                made = torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=settings)
            except Exception as error:
                raise RuntimeError(
                    f"torch could not compile the graph. {_first_line(error)} compile() needs a C++ compiler such as "
                    "g++; export needs none."
                ) from error
            return torch._inductor.aoti_load_package(made)


def _told(batch: Batch, size: int) -> str:
    """All inputs in words, those without rows as if they had `size` of them."""
    found = []
    for name, value in (*enumerate(batch.args), *batch.kwargs.items()):
        for part in leaves(value):
            text = repr(part)
            if isinstance(part, Tensor):
                shape = (size, *part.shape[1:]) if part.shape[:1] == (0,) else tuple(part.shape)
                text = f"{part.dtype} {shape} on {part.device}"
            found.append(f"{name}={text}" if isinstance(name, str) else text)
    return ", ".join(found)


def _traced(detector: Any, fitted: Fitted, batch: Batch, coverage: Coverage) -> ExportedProgram:
    reader = detector.reader
    if not isinstance(reader, Extractor):
        raise NotImplementedError(f"this {type(detector).__name__} reads no network itself, so there is no graph.")
    graph = (PixelGraph if isinstance(reader, PixelExtractor) else Graph)(reader, fitted, coverage, batch)
    count = batch.size

    def dynamic(tensor: Tensor) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if tensor.dim() and tensor.shape[0] == count else None

    def twice(tensor: Tensor) -> Tensor:  # torch.export takes a batch of one as a constant
        return torch.cat([tensor, tensor]) if count == 1 and dynamic(tensor) else tensor

    tensors = _tensors_of(batch)
    given, shapes = tuple(map(twice, tensors)), {"inputs": tuple(map(dynamic, tensors))}
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            return torch.export.export(graph, given, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        network = type(detector.model).__name__
        if "specialized it to be a constant" in str(error):
            raise RuntimeError(
                f"{network} takes no other number of inputs than the example's, {count}, once it is a graph: its "
                "forward uses that as a constant. Write x.shape[0] for it, or -1 in a reshape, and not len(x)."
            ) from error
        raise RuntimeError(
            f"{type(detector).__name__} cannot be exported: torch {torch.__version__} does not trace "
            f"{graph.stage.name} of {network}. {_first_line(error)} A graph has no branch on the values of tensors "
            "and no numpy; change that, read another layer, or try a newer torch."
        ) from error


def _tensors_of(batch: Batch) -> list[Tensor]:
    """The inputs of a graph: all tensors of a batch, in their order."""
    return list(leaves((batch.args, batch.kwargs), Tensor))


def _input_names(detector: Any, batch: Batch) -> list[str]:
    """What the network calls its inputs, one for each tensor of a batch, in their order."""
    bound = inspect.signature(find(detector.model, [""])[""].forward).bind(*batch.args, **batch.kwargs)
    names: list[str] = []
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        some = value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        for key, part in some.items():
            found = list(leaves(part, Tensor))
            names += [key] if len(found) == 1 else [f"{key}_{place}" for place in range(len(found))]
    return names


def _write(
    detector: Any, fitted: Fitted, program: ExportedProgram, batch: Batch, path: Path, coverage: float | None
) -> None:
    target = Path(os.path.realpath(path))
    levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "onnx_ir")}
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            made = torch.onnx.export(program, dynamo=True, verbose=False)
    except Exception as error:
        raise RuntimeError(
            f"ONNX cannot hold the graph of {type(detector).__name__} around {type(detector.model).__name__}: "
            f"{_first_line(error)} Without a path, export gives the program for torch; a newer torch may write more."
        ) from error
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    assert made is not None and program.call_spec.out_spec is not None
    model = made.model
    given = set(program.graph_signature.user_inputs)
    found = (node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in given)
    symbol = str(next(value.shape[0] for value in found if isinstance(value, Tensor)))
    for value in (*model.graph.inputs, *(value for node in model.graph for value in node.outputs)):
        shape: Any = value.shape or ()
        for axis, size in enumerate(shape):
            if not isinstance(size, int):
                shape[axis] = str(size.value).replace(symbol, "batch")
    spec = program.call_spec.out_spec
    outputs = list(pytree.tree_unflatten([0] * spec.num_leaves, spec))
    inputs = [f"input_{name}" if name in outputs else name for name in _input_names(detector, batch)]
    for value in (value for node in model.graph for value in node.outputs if value.name in {*inputs, *outputs}):
        value.name = f"graph.{value.name}"  # an operation's name, such as mean
    for value, name in zip((*model.graph.inputs, *model.graph.outputs), (*inputs, *outputs), strict=True):
        value.name = name
    about = {"version": __version__, "detector": type(detector).__name__, "task": detector.task.config()}
    about |= {"layers": detector.layers, "threshold": fitted.threshold, "unit": detector.unit}
    about |= {"calibrated": fitted.calibrated, "coverage": coverage if "lower" in outputs else None}
    for name, known in about.items():
        model.metadata_props[f"hidden_uncertainty.{name}"] = known if isinstance(known, str) else json.dumps(known)
    size = sum(part.const_value.nbytes for part in model.graph.initializers.values() if part.const_value is not None)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
        file = Path(folder) / target.name
        made.save(file, external_data=size >= LARGEST)
        _check(detector, batch, file)
        for part in sorted(file.parent.iterdir(), key=lambda part: part == file):  # the graph last
            os.replace(part, target.parent / part.name)


def _check(detector: Any, batch: Batch, path: Path) -> None:
    """Raise where a file says other than the detector of a batch."""
    try:
        import onnxruntime
    except ImportError:
        note(f"{path.name} was not compared with the detector: onnxruntime is not installed. {NEEDED}")
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise RuntimeError(
            f"onnxruntime cannot run the graph: {_first_line(error)} Nothing was written. It has no bfloat16 on a CPU: "
            "fit a detector of model.float() and export that."
        ) from error
    given = dict(zip((each.name for each in session.get_inputs()), map(to_array, _tensors_of(batch)), strict=True))
    names = [each.name for each in session.get_outputs()]
    found = dict(zip(names, session.run(names, given), strict=True))
    off = _difference(detector(batch), found)
    if not off <= CLOSE:
        raise RuntimeError(
            f"the graph differs from the detector on the example: epistemic by {off:.2g} of the score, more than "
            f"{CLOSE:g}. Nothing was written. Does the network give the same twice? In half precision it does not "
            "in another runtime: fit a detector of model.float() and export that."
        )
    note(f"{path.name}: onnxruntime and the detector differ by {off:.1e} of the epistemic score on the example.")


def _difference(u: Uncertainty, found: Mapping[str, np.ndarray]) -> float:
    """By how much epistemic scores differ at most, as a share of them, or of the median where they are smaller."""
    ours, theirs = (np.asarray(part, dtype=np.float64) for part in (to_array(u.epistemic), found["epistemic"]))
    known = np.isfinite(ours)
    if not np.array_equal(known, np.isfinite(theirs)):
        return float("inf")
    sizes, away = np.abs(ours[known]), np.abs(ours[known] - theirs[known])
    return float((away / np.maximum(sizes, np.median(sizes) or 1.0)).max()) if known.any() else 0.0


def _require_onnx(path: Path) -> None:
    if torch.__version__ < "2.7":  # by numbers, as torch compares its versions
        raise RuntimeError(f"torch {torch.__version__} is too old to write '{path}': ONNX needs 2.7 or newer.")
    try:
        import onnxscript  # noqa: F401  # which needs onnx
    except ImportError as error:
        raise ImportError(f"'{path}' is a file for ONNX runtimes, which takes onnx and onnxscript: {NEEDED}") from error
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir() or target.is_dir():
        raise FileNotFoundError(f"'{path}' is a folder, or is in none: name a file in a folder that exists.")


def _first_line(error: BaseException) -> str:
    """What an error says first, as a sentence."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if text.endswith((".", "!", "?")) else f"{text}."
