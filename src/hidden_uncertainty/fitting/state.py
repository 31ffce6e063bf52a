"""`State`: what a pass over training data gathers to fit to, which can be added, saved and sent; and rows on disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import io
from ..density import Moments, Sums
from ..extract import AsIs, Features
from ..model.tasks import Condition, from_config
from ..reduce import Reduction
from ..team import Team

ROWS = 1 << 13  # put together before they are summed: products of few rows are slow
VERSION = "state 1"  # of files
FLOATS = ("float16", "bfloat16", "float32", "float64")
READ = 1 << 14  # rows read at a time; mapped into memory, all of them would count as held
SPARE = 1 << 26  # bytes that a disk keeps


@dataclass(eq=False)
class State:
    """What was gathered from training data: sums over the rows of each term, and a sample of rows chosen by content.

    Made by `Detector.gather`. States of different data are added with `+` or `sum`, exactly and in any order, and
    `Detector.fit_state` fits to the result what a fit to all data at once would give. Methods that are not fitted to
    sums, such as mixtures, are fitted to the sample, of 65,536 rows at most: of more data, the fit is approximate. The
    size does not depend on the amount of data.

    Example:
        >>> from hidden_uncertainty import GaussianMixture, LatentDensity
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        >>> x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
        >>> detector = LatentDensity(model, "0", GaussianMixture(1))
        >>> states = [detector.gather(part.split(100)) for part in (x[:200], x[200:])]
        >>> detector = detector.fit_state(sum(states))
        >>> detector.fit(x.split(100)).layers
        ['0']
    """

    condition: Condition  # whether rows are summed by predictions or by labels
    sums: Mapping[str, Sums]  # what is kept of each term
    limit: int  # rows of the sample at most
    moments: dict[str, Moments] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)  # of terms that sums are not enough for, on disk
    sample: Features | None = None  # with the task, the reductions and the classes
    inputs: int = 0  # how many were gathered from
    _waiting: list[Features] = field(default_factory=list)

    def __repr__(self) -> str:
        layers = [] if self.sample is None else list(self.sample.z)
        return f"State({self.inputs:,} inputs, layers={layers}, sums={dict(self.sums)}, given {self.condition}s)"

    def add(self, features: Features) -> None:
        """Add the features of a batch."""
        self._waiting.append(features)
        self.inputs += len(features)
        if sum(map(len, self._waiting)) >= ROWS:
            self.settle()

    def settle(self) -> State:
        """Sum what still waits."""
        if not self._waiting:
            return self
        rows = Features.cat(self._waiting)
        if self.sums or self.rows:
            y = rows.condition(self.condition)
            if len(y) and int(y.min()) < 0:
                raise ValueError(f"classes must be 0 or more, not {int(y.min())}: leave such inputs out.")
            for name, sums in self.sums.items():
                z = rows.z[name]
                if name not in self.moments:
                    home = "cpu" if z.device.type == "mps" else z.device  # which has no float64
                    self.moments[name] = Moments.empty(rows.classes or 0, z.shape[1], sums, home)
                self.moments[name].update(z, y)
            for name, file in self.rows.items():
                file.append(rows.z[name], y)
        kept = rows.lowest(self.limit)
        self.sample = kept if self.sample is None else Features.cat([self.sample, kept]).lowest(self.limit)
        return self

    def __add__(self, other: State | int) -> State:
        """The state of the data of both; `sum` begins with 0."""
        if not isinstance(other, State):
            return self if isinstance(other, int) and other == 0 else NotImplemented
        mine, theirs = self.settle().sample, other.settle().sample
        if mine is None or theirs is None:
            return self if theirs is None else other
        for name, reduction in mine.reductions.items():
            if name not in theirs.reductions or not reduction.same_as(theirs.reductions[name]):
                raise ValueError(
                    f"the states were gathered with different reductions of layer {name!r}: fit the reductions once, "
                    "to all data or a part (detector.fit), send that detector to where data are (save and load), and "
                    "gather with it."
                )
        if (self.condition, dict(self.sums), self.limit) != (other.condition, dict(other.sums), other.limit):
            raise ValueError("the states are of different detectors: gather both with the same one.")
        moments = {name: self.moments[name] + other.moments[name] for name in self.moments}
        rows = Features.received([mine.plain(), theirs.plain()], mine.reductions, mine.prediction.device)
        sample, inputs = rows.lowest(self.limit), self.inputs + other.inputs
        return State(self.condition, self.sums, self.limit, moments, sample=sample, inputs=inputs)

    __radd__ = __add__

    def summed(self, crew: Team, reductions: Mapping[str, Reduction], device: torch.device | str) -> State:
        """The state of the data of all processes, of which each calls this, on a device; all have the reductions."""
        if crew.size == 1:
            return self.settle()
        with crew.step():
            self.settle()
        own = {name: (part.shift.shape[1], len(part.count), part.dtype) for name, part in self.moments.items()}
        known = [facts for facts in crew.all(own) if facts]
        total = State(self.condition, self.sums, self.limit, inputs=sum(crew.all(self.inputs)))
        if not total.inputs:
            raise ValueError("no process was given any input: all shards are empty.")
        for name, sums in self.sums.items():
            mine = self.moments.get(name) or Moments.empty(0, known[0][name][0], sums, device)
            found = mine.summed(max(facts[name][1] for facts in known), crew.sum)
            found.dtype = max((facts[name][2] for facts in known), key=lambda dtype: dtype.itemsize)
            total.moments[name] = found
        # Keys first, so that only rows travel that stay.
        keys = torch.zeros(0, dtype=torch.float64) if self.sample is None else self.sample.keys().cpu()
        lowest = torch.cat(crew.all(keys)).sort().values[: self.limit]
        last = float(lowest[-1]) if len(lowest) else -1.0
        rows = None if self.sample is None else self.sample[keys <= last].plain()
        total.sample = Features.received(crew.all(rows), reductions, device).lowest(self.limit)
        return total

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a safetensors file, from which `State.load` reads it."""
        sample = self.settle().sample
        if sample is None:
            raise ValueError("there is nothing to save: no input was gathered.")
        known = {"prediction": sample.prediction, "label": sample.label, "variance": sample.variance}
        terms, tensors = [], {name: values for name, values in known.items() if values is not None}
        for place, (name, z) in enumerate(sample.z.items()):
            reduction, residual, moments = sample.reductions[name], sample.residual[name], self.moments.get(name)
            parts = {"z": z, **({} if residual is None else {"residual": residual})}
            parts |= {f"reduction.{key}": tensor for key, tensor in reduction.state_dict().items()}
            parts |= {} if moments is None else {f"moments.{key}": part for key, part in moments.tensors().items()}
            tensors |= {f"{place}.{key}": tensor for key, tensor in parts.items()}
            asis = isinstance(reduction, AsIs)
            facts = {"name": name, "reduction": None if asis else reduction.config(), "sums": self.sums.get(name)}
            terms.append({**facts, "dtype": None if moments is None else str(moments.dtype).removeprefix("torch.")})
        header = {"version": VERSION, "condition": self.condition, "inputs": self.inputs, "limit": self.limit}
        io.write(path, {**header, "task": sample.task.config(), "classes": sample.classes, "terms": terms}, tensors)

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str | None = None) -> State:
        """Read what `save` wrote."""
        header, tensors = io.read(path, device)
        if header.get("version") != VERSION:
            raise io.Unusable(f"'{path}' holds no state of this version, but {header.get('version')!r}.")
        with io.blaming(path):
            state = cls(header["condition"], {}, header["limit"], inputs=header["inputs"])
            reductions: dict[str, Reduction] = {}
            for place, term in enumerate(header["terms"]):
                name, config, sums = term["name"], term["reduction"], term["sums"]
                fitted = _under(f"{place}.reduction.", tensors)
                reduction = AsIs() if config is None else Reduction.from_config(config, fitted)
                reductions[name] = reduction.to(device or "cpu")
                if sums is not None:
                    found: dict[str, Any] = {"cubes": None, "fourth": None, **_under(f"{place}.moments.", tensors)}
                    io.expect(term["dtype"] in FLOATS, f"rows of {name!r} are of an unknown type")
                    state.moments[name] = Moments(**found, dtype=getattr(torch, term["dtype"]))
                    state.moments[name].check(sums, state.inputs)
                    state.sums = {**state.sums, name: sums}
            state.sample = Features(
                z={term["name"]: tensors[f"{place}.z"] for place, term in enumerate(header["terms"])},
                residual={term["name"]: tensors.get(f"{place}.residual") for place, term in enumerate(header["terms"])},
                prediction=tensors["prediction"],
                task=from_config(header["task"]),
                reductions=reductions,
                label=tensors.get("label"),
                variance=tensors.get("variance"),
                classes=header["classes"],
            )
        return state


def _under(start: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(start): part for key, part in tensors.items() if key.startswith(start)}


class Rows:
    """Rows of one term with their classes, in two files; they are read in the order in which they came."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.count = torch.zeros(0, dtype=torch.long)  # rows of each class
        self._first: Tensor | None = None
        self._same = True

    def append(self, z: Tensor, y: Tensor) -> None:
        """Write rows (n, d) with their classes (n,); an error where the disk is full."""
        if self._first is None and len(z):
            self._first = z[:1].clone()
        if self._first is not None:
            self._same = self._same and bool((z == self._first).all())
        for kind, part in (("z", z), ("y", y)):
            content = part.detach().cpu().contiguous().numpy()
            free = shutil.disk_usage(self.path.parent).free
            try:
                if free < content.nbytes + SPARE:
                    raise OSError(errno.ENOSPC, "no space left")
                with open(f"{self.path}.{kind}", "ab") as file:
                    file.write(content.data)
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"the features of layer {self.name!r} do not fit into {str(self.path.parent.parent)!r}, with "
                    f"{free / 1e6:,.0f} MB free after {int(self.count.sum()):,} rows ({error.strerror}): give spill= a "
                    "larger disk",
                ) from error
        size = max(len(self.count), int(y.max()) + 1 if len(y) else 0)
        self.count = torch.nn.functional.pad(self.count, (0, size - len(self.count))) + y.cpu().bincount(minlength=size)

    def constant(self) -> bool:
        """Whether all rows are the same."""
        return self._same

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        assert self._first is not None
        width, kind = self._first.shape[1], str(self._first.dtype).removeprefix("torch.")
        with open(f"{self.path}.z", "rb") as rows, open(f"{self.path}.y", "rb") as classes:
            while len(y := np.fromfile(classes, np.int64, READ)):
                z = np.fromfile(rows, kind, len(y) * width).reshape(len(y), width)
                yield torch.from_numpy(z).to(self._first.device), torch.from_numpy(y).to(self._first.device)
