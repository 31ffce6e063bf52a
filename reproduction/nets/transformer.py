"""Small transformers for images and for short texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hidden_uncertainty.demo.training import built

from .resnet18 import Standardise


class Block(nn.Module):
    """Attention and two full layers, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """Tokens (n, T, W), and which of them (n, T) are looked at."""
        n, count, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mask = None if seen is None else seen[:, None, None, :]
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(n, count, width)
        x = x + self.dropout(self.out(read))
        return x + self.dropout(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    """Patches of an image as tokens, with a class token that the head reads.

    Args:
        classes: how many there are.
        side: of the images, in pixels.
        patch: side of a patch, in pixels.
        width: dimensions of a token.
        depth: blocks.
        mean: of the training pixels, per channel.
        std: of the training pixels, per channel.
        dropout: share of numbers dropped after attention and full layers, in training mode.
        seed: of the initial weights.

    Example:
        >>> VisionTransformer(width=16, depth=2)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        side: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 9,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.25, 0.25, 0.25),
        dropout: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with built(seed):
            self.standardise = Standardise(mean, std)
            self.patches = nn.Conv2d(3, width, patch, stride=patch)
            self.first = nn.Parameter(torch.zeros(1, 1, width))
            self.places = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
            self.blocks = nn.ModuleList(Block(width, max(1, width // 64), dropout) for _ in range(depth))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.seed = seed

    def forward(self, images: Tensor) -> Tensor:
        """The logit of each class (n, classes), for images (n, 3, H, W) in [0, 1]."""
        x = self.patches(self.standardise(images)).flatten(2).transpose(1, 2)  # (n, T, W)
        x = torch.cat([self.first.expand(len(x), -1, -1).to(x.dtype), x], 1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class TextTransformer(nn.Module):
    """Words as tokens; the head reads the mean over the words of a text.

    Args:
        words: how many there are; number 0 is padding.
        length: words of a text, with padding.
        classes: how many there are.
        width: dimensions of a token.
        depth: blocks.
        dropout: share of numbers dropped after the embedding, attention and full layers, in training mode.
        seed: of the initial weights.

    Example:
        >>> TextTransformer(9, 6, 3, width=16, depth=2)(torch.tensor([[4, 2, 8, 0, 0, 0]])).shape
        torch.Size([1, 3])
    """

    def __init__(
        self,
        words: int,
        length: int,
        classes: int,
        *,
        width: int = 128,
        depth: int = 4,
        dropout: float = 0.2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with built(seed):
            self.words = nn.Embedding(words, width)
            self.places = nn.Parameter(0.02 * torch.randn(1, length, width))
            self.dropout = nn.Dropout(dropout)
            self.blocks = nn.ModuleList(Block(width, max(1, width // 32), dropout) for _ in range(depth))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        self.seed = seed

    def forward(self, numbers: Tensor) -> Tensor:
        """The logit of each class (n, classes), for numbers of words (n, length)."""
        seen = numbers != 0
        x = self.dropout(self.words(numbers) + self.places)
        for block in self.blocks:
            x = block(x, seen)
        share = seen[..., None] / seen.sum(1).clamp(min=1)[:, None, None]
        return self.head((self.norm(x) * share).sum(1))
