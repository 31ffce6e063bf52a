"""Images with one target per pixel, as files on disk and as tensors in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from os import cpu_count
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from hidden_uncertainty.progress import track

from ._pictures import read_image, resize_image

IGNORE = 255  # the class of pixels without one; for depth, NaN means no value

Decode = Callable[[Path, bytes], Tensor]


@dataclass(frozen=True, eq=False)
class Dense:
    """Images with a class or a number per pixel, held in memory.

    Args:
        images: (n, 3, H, W), uint8.
        targets: (n, h, w): classes as uint8, 255 where there is none; or numbers as float32, NaN where there is none.
        digest: sha256 of the names and contents of the files, in order, for result files.

    Example:
        >>> some = Dense(torch.zeros(5, 3, 4, 8, dtype=torch.uint8), torch.zeros(5, 2, 4), digest="")
        >>> len(some), some.batches(2)[2][1].shape
        (5, torch.Size([1, 2, 4]))
    """

    images: Tensor
    targets: Tensor
    digest: str

    def __post_init__(self) -> None:
        images, targets = self.images, self.targets
        if images.dim() != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise ValueError(f"expected images (n, 3, H, W) of uint8, got {tuple(images.shape)} of {images.dtype}.")
        if targets.dim() != 3 or len(targets) != len(images) or targets.dtype not in (torch.uint8, torch.float32):
            raise ValueError(
                f"expected targets ({len(images)}, h, w) of uint8 or float32, got {tuple(targets.shape)} of "
                f"{targets.dtype}."
            )

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, size: int = 16) -> list[tuple[Tensor, Tensor]]:
        """Images as bytes with their targets, in order, `size` at a time; classes as int64."""
        targets = (part if part.is_floating_point() else part.long() for part in self.targets.split(size))
        return list(zip(self.images.split(size), targets, strict=True))


@dataclass(frozen=True, eq=False)
class DenseFiles(Dataset[tuple[Tensor, Tensor]]):
    """Pairs of files, each an image and its target, read on demand: a map-style data set.

    Args:
        name: of the data set, for bars and errors.
        pairs: paths of each image and its target.
        decode: turns a file's content into a target (h, w): uint8 classes or float32 numbers, as in `Dense`.
        size: (H, W) to resize images to, with antialiasing; None keeps their size. Targets are resized by the same
            ratio, to the nearest value.

    Example:
        >>> from reproduction.datasets.dense import cityscapes
        >>> files = cityscapes("val", root="data", size=(256, 512))  # doctest: +SKIP
        >>> image, target = files[0]  # (3, 256, 512) of uint8, (256, 512) of int64  # doctest: +SKIP
    """

    name: str
    pairs: Sequence[tuple[Path, Path]]
    decode: Decode
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise ValueError(f"size must be (height, width) in pixels, got {self.size}.")

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """An image (3, H, W) of uint8 and its target (h, w), int64 or float32."""
        image, target, _ = self._read(self.pairs[index])
        return image, target if target.is_floating_point() else target.long()

    def some(self, rows: Sequence[int]) -> DenseFiles:
        """Some of the pairs.

        Args:
            rows: their positions, from 0.
        """
        return replace(self, pairs=[self.pairs[row] for row in rows])

    def load(self, *, threads: int | None = None) -> Dense:
        """Read all files into memory.

        Args:
            threads: that read and decode; None takes one per processor, at most 16.
        """
        if not self.pairs:
            raise ValueError(f"{self.name} has no images to load: expected at least one.")
        with ThreadPoolExecutor(threads or min(cpu_count() or 1, 16)) as pool:
            try:
                found = pool.map(self._read, self.pairs)
                return self._gather(track(found, f"reading {self.name}", total=len(self)))
            finally:
                pool.shutdown(cancel_futures=True)  # an error in one file does not wait for the others

    def _gather(self, found: Iterable[tuple[Tensor, Tensor, bytes]]) -> Dense:
        """Copy all images into one tensor, as they come."""
        total = sha256()
        images = targets = torch.empty(0, device="cpu")
        for i, (image, target, digest) in enumerate(found):
            if i == 0:
                images = torch.empty(len(self), *image.shape, dtype=torch.uint8, device="cpu")
                targets = torch.empty(len(self), *target.shape, dtype=target.dtype, device="cpu")
            if image.shape != images.shape[1:] or target.shape != targets.shape[1:]:
                raise ValueError(
                    f"{str(self.pairs[i][0])!r} has {_size(image)} pixels with a target of {_size(target)}, the first "
                    f"image {_size(images)} with {_size(targets)}: one tensor needs one size. Pass "
                    "size=(height, width), or read them one by one."
                )
            images[i], targets[i] = image, target
            total.update(digest)
        return Dense(images, targets, total.hexdigest())

    def _read(self, pair: tuple[Path, Path]) -> tuple[Tensor, Tensor, bytes]:
        """An image, its target, and the digest of both files."""
        contents = [path.read_bytes() for path in pair]
        image, target = read_image(pair[0], contents[0]), self.decode(pair[1], contents[1])
        _check_shapes(pair, image, target)
        if self.size is not None and self.size != tuple(image.shape[1:]):
            h, w = (round(t * new / old) for t, new, old in zip(target.shape, self.size, image.shape[1:], strict=True))
            target = F.interpolate(target[None, None], size=(h, w), mode="nearest-exact")[0, 0]
            image = resize_image(image, self.size)
        names = "".join(f"{path.name}\n" for path in pair)
        return image, target, sha256(names.encode() + b"".join(sha256(c).digest() for c in contents)).digest()


def _check_shapes(pair: tuple[Path, Path], image: Tensor, target: Tensor) -> None:
    """A target covers its image: both must have the same proportions, to one pixel of the target."""
    (h, w), (height, width) = target.shape, image.shape[1:]
    if abs(h * width - w * height) > max(height, width):
        raise ValueError(
            f"{str(pair[1])!r} has {_size(target)} pixels, which does not fit the {_size(image)} of its image "
            f"{pair[0].name!r}: expected the same size or the same proportions."
        )


def _size(values: Tensor) -> str:
    return f"{values.shape[-2]}×{values.shape[-1]}"
