"""Principal components of data that does not fit into memory: only sums over batches are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..precision import gradients, precise

FLOAT32_EPS = torch.finfo(torch.float32).eps


class Components(NamedTuple):
    """What a principal component analysis found."""

    mean: Tensor  # (D,), in float32
    basis: Tensor  # (D, k), likewise: orthonormal columns, largest variance first
    variance: Tensor  # (k,), in float64, as squares of small activations underflow
    total: Tensor  # scalar: the variance of all D dimensions, likewise


class StreamingPCA:
    r"""Principal components from batches, in memory O(D·l) whatever the number of samples.

    Up to 2,048 dimensions (or l), one pass sums the scatter matrix C = XᵀX in float64: exact. Beyond, a randomised
    method (Halko et al. 2011; Tropp et al. 2017) needs two passes over the same data. With centred data X (n, D) and
    random signs Ω (D, l), pass one sums C Ω = Xᵀ(XΩ) and takes Q = qr(C Ω); the last pass sums C Q = XᵀY and YᵀY with
    Y = XQ, and the components are those of the Nyström approximation

    .. math:: \hat C = X^\top P_Y X = (C Q)\,(Y^\top Y)^{-1}\,(C Q)^\top \;\preceq\; C,

    with P_Y the projection on the columns of Y: for the same passes this captures more than the components within Q do,
    and `variance` never exceeds what the basis truly captures. All sums are taken about a shift and moved to the true
    mean when the pass ends: a mean a thousand times the spread costs no digits. Rank r gives at most r components.

    Args:
        dim: D, numbers per sample.
        keep: how many components are wanted.
        seed: of Ω.
        name: what errors call the data.
    """

    EXACT_DIM = 2048  # up to here the whole D × D scatter is summed, in float64: 34 MB
    SKETCH_ENTRIES = 36_000_000  # two D × l float32 matrices are held: 2 × 144 MB
    CHUNK_ENTRIES = 2**24  # of a batch, centred at a time: 256 rows of 65,536

    def __init__(self, dim: int, keep: int, *, seed: int = 0, name: str = "x") -> None:
        self.dim, self.keep = dim, min(keep, dim)
        self.sketch = self.keep + max(32, min(keep, self.SKETCH_ENTRIES // dim - keep))  # l
        self.exact = dim <= max(self.EXACT_DIM, self.sketch)
        self.passes = self.passes_left = 1 if self.exact else 2
        self.seed, self.name = seed, name
        self._shift: Tensor | None = None  # (D,), about which this pass sums
        self.components: Components | None = None  # once all passes have ended

    def _start(self, first: Tensor) -> None:
        self.device = torch.device("cpu") if first.device.type == "mps" else first.device  # which has no float64
        self._shift = first.to(self.device).mean(0, dtype=torch.float64).float()
        if self.exact:
            self._scatter = torch.zeros(self.dim, self.dim, dtype=torch.float64, device=self.device)
        else:
            self._right = _signs(self.dim, self.sketch, self.seed, self.device)  # Ω, then Q
            # (C Ω)ᵀ: rows are LAPACK's columns
            self._left = torch.zeros(self.sketch, self.dim, dtype=torch.float32, device=self.device)
        self._reset()

    def _reset(self) -> None:
        self._count = 0
        self._sum = torch.zeros(self.dim, dtype=torch.float64, device=self.device)
        self._energy = torch.zeros((), dtype=torch.float64, device=self.device)
        if not self.exact:
            self._small = torch.zeros(self.sketch, self.sketch, dtype=torch.float64, device=self.device)  # YᵀY

    # Tensors made in inference mode could not be updated outside it, nor be buffers of a module that is differentiated.
    @gradients(False, lasting=True)
    @precise
    def update(self, x: Tensor) -> None:
        """Add a batch (n, D) of any floating type on any device to the sums of the current pass. It is not kept."""
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"{self.name} must be (n, {self.dim}), got {tuple(x.shape)}.")
        if len(x) == 0:
            return
        if self._shift is None:
            self._check_finite(x)  # once, as the mean of this batch is kept
            self._start(x)
        assert self._shift is not None
        for chunk in x.split(max(1, self.CHUNK_ENTRIES // self.dim)):
            # Exact in float64 before the shift is taken off, which depends on the order of the data.
            wide = torch.float64 if self.exact else torch.promote_types(chunk.dtype, torch.float32)
            centred = chunk.to(self._shift.device, wide, copy=True).sub_(self._shift)  # (m, D)
            centred = centred if self.exact else centred.float()
            energy = torch.linalg.vector_norm(centred, dim=1).double().square().sum()
            if not torch.isfinite(energy):
                self._check_finite(x)
                raise ValueError(
                    f"{self.name} gave values up to {float(x.abs().max()):.1e} in a batch of {len(x):,}, whose "
                    f"squares overflow float32: the network diverges on these inputs. Leave them out or scale them."
                )
            self._energy += energy
            self._sum += centred.sum(0).double()
            self._count += len(chunk)
            if self.exact:
                self._scatter.addmm_(centred.T, centred)
                continue
            product = centred @ self._right  # (m, l)
            self._left.addmm_(product.T, centred)
            if self.passes_left == 1:
                product = product.double()
                self._small.addmm_(product.T, product)

    @gradients(False, lasting=True)
    @precise
    def end_pass(self, all_sum: Callable[[Tensor], Tensor] | None = None) -> None:
        """End the current pass: the next one must bring the same samples, in any order and any batches.

        `all_sum` is the sum of a tensor over the processes that share the data, when several do; each must call this.
        """
        if self._shift is None and all_sum is not None:  # no samples are here, but others have some
            self._start(torch.zeros(1, self.dim))
        if self._shift is None or (self._count == 0 and all_sum is None):
            raise RuntimeError(
                f"pass {self.passes - self.passes_left + 1} of {self.passes} over {self.name} brought no samples: "
                f"the loader must be iterable {self.passes} times (use a list or a DataLoader, not a generator)."
            )
        all_sum, shift = all_sum or (lambda tensor: tensor), self._shift.double()
        moments = all_sum(torch.cat([self._sum + self._count * shift, shift.new_tensor([self._count])]))
        count = int(moments[-1])
        mean = moments[:-1] / count  # (D,)
        # Σ(c-δ)(c-δ)ᵀ = Σccᵀ - sδᵀ - δaᵀ: c = x - shift, δ = mean - shift, s = Σc, a = s - nδ (0 in one process).
        delta = mean - shift
        rest = self._sum - self._count * delta
        energy = all_sum(self._energy - (self._sum + rest) @ delta)
        if self.exact:
            self._scatter.addr_(self._sum, delta, alpha=-1).addr_(delta, rest, alpha=-1)
            values, vectors = torch.linalg.eigh(all_sum(self._scatter))
            del self._scatter
            chosen = self._choose(values, count, mean)
            basis = vectors[:, chosen].float().contiguous()
        else:
            small_sum, small_delta, small_rest = (self._right.T @ v.float() for v in (self._sum, delta, rest))  # (l,)
            self._left.addr_(small_delta, self._sum.float(), alpha=-1).addr_(small_rest, delta.float(), alpha=-1)
            self._left = all_sum(self._left)
            del self._right  # before more is allocated
            if self.passes_left > 1:
                self.passes_left -= 1
                self._right = torch.linalg.qr(self._left.T).Q
                self._left.zero_()
                self._shift = mean.float()
                self._reset()
                return
            small = self._small - torch.outer(small_sum, small_delta) - torch.outer(small_delta, small_rest)
            values, right = _nystrom(self._left, all_sum(small))
            chosen = self._choose(values, count, mean)
            basis = self._left.new_empty(self.dim, len(chosen))
            for rows, block in zip(basis.split(1024), self._left.split(1024, dim=1), strict=True):
                rows.copy_(block.double().T @ right[:, chosen])
            del self._left, self._small
        self.passes_left = 0
        # The sign of a component is arbitrary, and rounding may turn it: a fixed direction decides, hardly ever a tie.
        generator = torch.Generator().manual_seed(0)
        fixed = torch.randn(self.dim, generator=generator, dtype=torch.float32, device="cpu").to(basis.device)
        basis *= torch.where(fixed @ basis < 0, -1.0, 1.0)
        variance = values[chosen] / (count - 1)
        self.components = Components(mean.float(), basis, variance, energy / (count - 1))

    def _check_finite(self, x: Tensor) -> None:
        bad = int(x.numel() - torch.isfinite(x).sum())
        if bad:
            raise ValueError(
                f"{self.name} gave {bad:,} non-finite values (NaN or infinity) in a batch of {len(x):,}: look for NaN "
                f"in the inputs, or for overflow in the network (float16 ends at 65,504; bfloat16 and float32 do not)."
            )

    def _choose(self, values: Tensor, count: int, mean: Tensor) -> Tensor:
        """Indices of the components to keep, the largest of the ascending eigenvalues first."""
        # Rounding float32 data makes up spreads of 1e-5 of the largest, or of the last digit of the mean.
        rounding = max(1e-10 * float(values[-1]), count * (FLOAT32_EPS * float(mean.abs().max())) ** 2)
        rank = min(int((values > rounding).sum()), self.keep, count - 1)
        if rank < 1:
            raise ValueError(
                f"{self.name} is constant: {count:,} samples gave the same {self.dim:,} numbers. Choose another layer, "
                f"or give more samples."
            )
        return torch.arange(len(values) - 1, len(values) - 1 - rank, -1, device=values.device)


def _signs(rows: int, columns: int, seed: int, device: torch.device) -> Tensor:
    """Ω of ±1: drawn on the CPU, to be the same on every device; eight per byte, as Gaussian numbers would be slow."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, -(-columns // 8), 1)
    drawn = torch.randint(256, shape, generator=generator, dtype=torch.uint8, device="cpu")
    bits = drawn.to(device).bitwise_right_shift(torch.arange(8, dtype=torch.uint8, device=device)).bitwise_and_(1)
    return bits.flatten(1)[:, :columns].float().mul_(2).sub_(1)


def _nystrom(left: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (r,), ascending, of (C Q)(YᵀY)⁻¹(C Q)ᵀ, and R (l, r) such that C Q R are its eigenvectors."""
    # The columns of Y differ by decades: scaled to a unit diagonal, the small ones keep their digits.
    scale = small.diagonal().clamp(min=0).rsqrt().nan_to_num(posinf=0.0)
    values, vectors = torch.linalg.eigh(scale[:, None] * small * scale)
    kept = values >= 1e-6 * values[-1]  # below, there are no digits left in float32
    whiten = scale[:, None] * vectors[:, kept] * values[kept].rsqrt().nan_to_num(posinf=0.0)  # (l, r)
    gram = torch.zeros_like(small)
    for block in left.split(1024, dim=1):
        wide = block.double()
        gram.addmm_(wide, wide.T)
    values, vectors = torch.linalg.eigh(whiten.T @ gram @ whiten)
    return values, whiten @ vectors * values.clamp(min=0).rsqrt()
