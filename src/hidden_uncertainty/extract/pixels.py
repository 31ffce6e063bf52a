"""`Pixels`: how a detector treats networks that predict a class or a number for every pixel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any, Literal, Self, get_args

from torch import Tensor

from ..io import plain

Resolution = Literal["output", "latent"]


@dataclass(frozen=True)
class Pixels:
    """For `LatentDensity(..., pixels=Pixels())`: every pixel is scored, so that scores are maps (n, H, W).

    A layer's output (n, C, h, w) is one vector per place; maps of another size than the scores' are interpolated
    bilinearly (`align_corners=False`). Neighbouring pixels are alike, so a density is fitted to a part of them. Of each
    class (for a network that predicts numbers, of all) a uniform sample of its pixels in all images is drawn, without
    those whose label is to be ignored. It is as large as both limits allow:

    1. `per_class` times the images that have the class. That is a mean: a large object gives more, a small one fewer;
    2. its even share of `reservoir`, of which classes that need less leave more to others.

    So every pixel of a class counts alike in p(z|ŷ), whatever the size of its object, as it does in p(ŷ), which is that
    of all pixels. Which are drawn depends on `seed` and on an image's content, not on its place in the loader.

    Images may be exchangeable where their pixels are not, so thresholds are calibrated over images: an image's score is
    the one that a `share` of its pixels exceeds, and with `detector.threshold(0.05)` at most one new image in twenty
    has more pixels above than that share. In calibration, an image's pixels are those whose label is not to be ignored.
    A call knows no labels, so `u.surprising` is told for every pixel: the promise is about those of a new image that
    would not be ignored either. Ignored regions that look unlike the rest can be surprising as a whole.

    A layer wider than its `max_dim` is reduced place by place, by the principal components of the pixels kept. Layers
    with their channels last, (n, h, w, C), need `reduce="tokens"`.

    Args:
        resolution: the grid of the scores: the network's `"output"`, or `"latent"`, that of the layer itself (with
            several layers, of the last that `combine` counts); class scores, or numbers, are interpolated to it.
        patch: k, odd: the k x k places around each one are one vector of C·k² numbers, in the order of
            `torch.nn.functional.unfold`, zeros beyond the edge as in a convolution.
        per_class: the most pixels drawn per class, for each image that has it, on average over these images.
        reservoir: the most pixels that a density is fitted to; that many vectors are held before they are reduced, on
            the device of the network, and up to as many again while they are sorted out.
        ignore: labels of pixels that are neither drawn, counted nor calibrated with: a value, several, or None. Pixels
            whose label is NaN never are. Labels of another size are read at the nearest pixel.
        share: of an image's pixels that may exceed the threshold without the image counting as a false alarm.

    Example:
        >>> Pixels.from_config(Pixels(patch=3, ignore=(0, 255)).config())
        Pixels(resolution='output', patch=3, per_class=500, reservoir=100000, ignore=(0, 255), share=0.01)
    """

    resolution: Resolution = "output"
    patch: int = 1
    per_class: int = 500
    reservoir: int = 100_000
    ignore: float | Sequence[float] | None = 255
    share: float = 0.01

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        if self.resolution not in get_args(Resolution):
            raise ValueError(f"resolution must be one of {get_args(Resolution)}, not {self.resolution!r}.")
        for name in ("patch", "per_class", "reservoir"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}.")
        if self.patch % 2 == 0:
            raise ValueError(f"patch must be odd, so that it has a middle, not {self.patch}.")
        if not 0 <= self.share < 1:
            raise ValueError(f"share is a share of pixels, from 0 to below 1, not {self.share!r}.")
        if isinstance(self.ignore, Sequence):
            object.__setattr__(self, "ignore", tuple(self.ignore))
        wrong = [value for value in self.ignored if not isinstance(value, Real) or value != value]
        if wrong:
            raise ValueError(f"ignore takes label values, not {wrong[0]!r}; labels of NaN are ignored anyway.")

    @property
    def ignored(self) -> tuple[float, ...]:
        """The labels to ignore."""
        if self.ignore is None:
            return ()
        return tuple(self.ignore) if isinstance(self.ignore, Sequence) else (self.ignore,)

    def valid(self, label: Tensor) -> Tensor:
        """Which pixels count, by their labels.

        Example:
            >>> import torch
            >>> Pixels(ignore=255).valid(torch.tensor([[0, 255]]))
            tensor([[ True, False]])
        """
        if not label.is_floating_point():
            label = label.long()  # compared as bytes, 255 would be -1
        valid = ~label.isnan()
        for value in self.ignored:
            valid &= label != value
        return valid

    def image_score(self, scores: Tensor) -> Tensor:
        """The lowest of an image's scores (m,) that at most a `share` of them exceeds.

        Example:
            >>> import torch
            >>> Pixels(share=0.25).image_score(torch.tensor([4.0, 1.0, 3.0, 2.0]))
            tensor(3.)
        """
        above = int(self.share * len(scores))
        above += (above + 1) / len(scores) <= self.share  # 0.29 * 100 rounds to just below 29
        return scores.kthvalue(len(scores) - above).values

    def config(self) -> dict[str, Any]:
        """The arguments, ready for JSON."""
        ignore = list(self.ignore) if isinstance(self.ignore, Sequence) else self.ignore
        return {**asdict(self), "ignore": ignore}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The inverse of `config`."""
        unknown = sorted(set(config) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"Pixels has no {', '.join(map(repr, unknown))}: it was written by another version.")
        return cls(**config)
