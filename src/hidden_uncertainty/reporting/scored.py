"""One loader, scored batch by batch: numbers of all inputs, and the few inputs that are shown."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..detector import Detector
from ..extract import Features
from ..extract.pixel_extractor import label_maps
from ..model.batches import Batch, leaves
from ..model.tasks import whole_labels
from ..uncertainty import Uncertainty

COVERAGES = (0.5, 0.8, 0.9, 0.95)  # of intervals
DRAWN = 1000  # pixels of an image, evenly over it, that accuracy and errors are told of
NEAREST = 3
KEEP, KEEP_MAPS = 6, 3  # inputs of each kind that are shown
KINDS = ("surprising", "ambiguous", "familiar")
Near = tuple[float, int, Tensor | None]  # distance, number, and the input where it is known


@dataclass
class Example:
    """An input that is shown."""

    rank: float
    place: int  # in the loader
    u: Uncertainty  # of this input alone
    label: Tensor | None
    batch: Batch  # of it alone
    shown: Tensor | None  # the same, where it can be shown
    near: list[Near] = field(default_factory=list)  # the training inputs that are closest


class Scored(dict[str, Tensor]):
    """What is known of one loader, whose inputs may have names: columns of numbers, and a few inputs of each kind."""

    def __init__(self, name: str, detector: Detector, names: Sequence[str] | None) -> None:
        super().__init__()
        self.name, self.detector, self.names = name, detector, names
        self.keep = KEEP if detector.pixels is None else KEEP_MAPS
        self.count, self.labelled = 0, True  # whether all batches had labels of the predictions' shape
        self.examples: dict[str, list[Example]] = {kind: [] for kind in KINDS}

    def read(self, loader: Iterable[Any]) -> Scored:
        """Score all of a loader, in one pass that keeps no more than numbers and a few inputs."""
        fitted, parts = self.detector._fitted(), defaultdict[str, list[Tensor]](list)
        for index, batch in enumerate(self.detector.reader.batches(loader, f"scoring {self.name}")):
            reading = self.detector.reader.reading(batch, fitted.head.reductions, index)
            for name, values in self._add(batch.to("cpu"), fitted.result(reading).cpu()).items():
                parts[name].append(values)
        if not self.count:
            raise ValueError(f"{self.name!r} gave no inputs: there is nothing to report.")
        if self.names is not None and len(self.names) != self.count:
            raise ValueError(
                f"names has {len(self.names):,} entries, but the loader gave {self.count:,} inputs: give one each."
            )
        told = self.labelled and any(map(len, parts["by epistemic"]))
        for name, some in parts.items():
            if told or name.startswith(("score", "p_", "amb")):
                self[name] = torch.cat(some)
        return self

    def _add(self, batch: Batch, u: Uncertainty) -> dict[str, Tensor]:
        label, valid = self._labels(batch.label, u)
        found = {f"score {name}": some.epistemic for name, some in u.layers.items()} | {"score": u.epistemic}
        pixels, head = self.detector.pixels, self.detector._fitted().head
        if pixels is not None and valid is not None:
            for name, maps in found.items():
                each = zip(maps, valid, strict=True)
                found[name] = torch.stack([pixels.image_score(scores[which]) for scores, which in each])
        if head.calibration is not None:
            found["p_value"] = head.calibration.p_value(found["score"])
        second = u.aleatoric if u.log_aleatoric is None else u.log_aleatoric
        if second is not None:
            found["ambiguity"] = second if valid is None else second.flatten(1).nanmean(1)
        self.labelled = self.labelled and label is not None
        if label is not None:
            found |= self._errors(u, label, valid, second)
        self._choose(batch, u, found, label)
        self.count += len(u)
        return found

    def _choose(self, batch: Batch, u: Uncertainty, found: dict[str, Tensor], label: Any) -> None:
        score = found["score"]
        for kind, rank in zip(KINDS, (score, found.get("ambiguity"), -score), strict=True):
            if rank is None:
                continue
            rank = torch.where(rank.isnan(), -math.inf, rank.double())
            known = self.examples[kind]
            for i in rank.topk(min(self.keep, len(u))).indices.tolist():
                one = batch[i : i + 1].clone()  # the loader may use its memory again
                own = None if label is None else label[i].clone()
                known.append(Example(float(rank[i]), self.count + i, u[i], own, one, _shown(one)))
            self.examples[kind] = heapq.nlargest(self.keep, known, key=lambda one: one.rank)

    def _labels(self, label: Tensor | None, u: Uncertainty) -> tuple[Tensor | None, Tensor | None]:
        """Labels in the shape of the predictions, where there are such, and for pixels which of them count."""
        pixels = self.detector.pixels
        if pixels is not None:
            maps = label_maps(label, u.prediction)
            valid = torch.ones_like(u.prediction, dtype=torch.bool) if maps is None else pixels.valid(maps)
            return maps, valid | ~valid.flatten(1).any(1)[:, None, None]  # an image without any counts as a whole
        if label is None or not u.prediction.is_floating_point():
            return whole_labels(label, u.prediction), None
        return (label.reshape(u.prediction.shape) if label.numel() == u.prediction.numel() else None), None

    def _errors(self, u: Uncertainty, label: Tensor, valid: Tensor | None, second: Tensor | None) -> dict[str, Tensor]:
        """What labels tell, per input or per drawn pixel: whether predictions are right, or how far off they are."""
        numbers, several = u.prediction.is_floating_point(), u.prediction.dim() == 2
        by = {"epistemic": u.epistemic, "aleatoric": second, "expected": u.expected_error}
        found = {f"by {name}": values for name, values in by.items() if values is not None}
        drawn = u.epistemic.isfinite()  # else the network gave no usable numbers
        if numbers:
            found["error"] = (u.prediction.double() - label.double()).abs()
        else:
            found["correct"] = (u.prediction == label).all(1) if several else u.prediction == label
            if u.probabilities is not None and not several:
                found["confidence"] = u.probabilities.gather(1, u.prediction[:, None])[:, 0]
        if several:
            found = {key: values.double().norm(dim=1) if values.dim() == 2 else values for key, values in found.items()}
        if numbers:
            drawn = drawn & found["error"].isfinite()  # else the label is missing
        if valid is not None:
            drawn &= valid
            for one in drawn.flatten(1):
                places = one.nonzero()[:, 0]
                one[:] = False
                one[places[:: max(1, len(places) // DRAWN)]] = True
        found = {name: values[drawn] for name, values in found.items()}
        return found | self._intervals(u, label, valid) if numbers else found

    def _intervals(self, u: Uncertainty, label: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
        head, pixels, found = self.detector._fitted().head, self.detector.pixels, dict[str, Tensor]()
        conformal = head.terms[head.leading].conformal
        for share in COVERAGES:
            if conformal is not None and (1 - share) * (len(conformal.scores) + 1) >= 1:
                low, high = self.detector.interval(u, share)
                inside = ((low <= label) & (label <= high)).reshape(len(u), -1)
                if valid is not None and pixels is not None:
                    counts = valid.flatten(1)
                    found[f"held {share}"] = (~inside & counts).sum(1) / counts.sum(1) <= pixels.share
                else:
                    found[f"held {share}"] = inside.all(1)[label.isfinite().reshape(len(u), -1).all(1)]
                found[f"width {share}"] = (high - low).reshape(len(u), -1).mean(1)
        return found


def find_nearest(detector: Detector, train: Features | Iterable[Any], layer: str, examples: list[Example]) -> None:
    """Give each example the training inputs that are closest to it."""
    reductions, start = detector._fitted().head.reductions, 0

    def vectors(loader: Iterable[Any], what: str) -> Iterator[tuple[Tensor, Tensor | None]]:
        for batch in detector.reader.batches(loader, what):
            yield next(detector.reader.reading(batch, reductions).rows(layer)).z, _shown(batch)

    queries = torch.cat([z.cpu().double() for z, _ in vectors([example.batch for example in examples], "comparing")])
    if isinstance(train, Features):
        train.require([layer], {layer: reductions[layer]})
        parts: Iterable[tuple[Tensor, Tensor | None]] = ((z, None) for z in train.z[layer].split(1 << 12))
    else:
        parts = vectors(train, "comparing with training data")
    for z, inputs in parts:
        best = torch.cdist(queries, z.cpu().double()).topk(min(NEAREST, len(z)), largest=False)
        for example, values, places in zip(examples, best.values.tolist(), best.indices.tolist(), strict=True):
            for d, i in zip(values, places, strict=True):
                example.near.append((d, start + i, None if inputs is None else inputs[i].cpu().clone()))
            example.near = heapq.nsmallest(NEAREST, example.near, key=lambda one: one[0])
        start += len(z)


def _shown(batch: Batch) -> Tensor | None:
    """The inputs, where they are images (n, c, h, w) or rows of numbers (n, d)."""
    first = next(leaves((batch.args, batch.kwargs), Tensor))
    return first if first.dim() == 2 or (first.dim() == 4 and first.shape[1] in (1, 3, 4)) else None
