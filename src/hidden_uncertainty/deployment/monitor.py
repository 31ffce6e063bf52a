"""`Monitor`: tells when a stream of inputs has drifted away from the data that a detector was calibrated on."""

from __future__ import annotations

import json
import math
from hashlib import blake2b
from os import PathLike
from typing import Any, Self

import torch
from torch import Tensor

from .. import io
from ..arrays import to_tensor
from ..detector import Detector
from ..notes import logger, warn
from ..scoring.calibration import Calibration, check_share, refuse_nan
from ..uncertainty import Uncertainty

SHIFTS = (0.25, 0.5, 1.0, 2.0)  # deviations that bets expect normal scores to have moved by, up or down
SCALES = (0.6, 1.6)  # that they are narrower or wider by
TAILS = (0.05, 0.15, 0.5)  # shares of inputs that have moved to the highest scores, or to the lowest
PEAK = 0.3  # exponent of these: how close to the end they are
HEDGE = 0.02  # of every bet stays on no drift, so that no input can ruin it
SOON, DECAY = 1000, 0.2  # when drift is expected: half at once, and a part (1 + t / SOON)^-DECAY of the rest after t
TIES = 10  # margins of a `Calibration` within which scores have a random order
ROWS = 4096  # inputs that are worked on at once
HIGHEST = 1e300  # what stands for infinity
NUMBERS = ("samples", "false_alarm", "width", "usual", "inputs", "log_evidence", "log_highest", "alarm", "since")
TENSORS = ("edges", "counts", "_worth", "_best", "_start")


class Monitor:
    r"""Watches the scores of a stream, and tells when it is no longer like the calibration data.

    .. math:: P(\text{an alarm, ever} \mid \text{no drift}) \leq \text{false\_alarm}

    however long the stream is and however often it is looked at: over the draw of calibration set and stream, if these
    are exchangeable, and if the score was fixed without them. It holds for any number n of calibration scores. With
    :math:`n_k` of the n + 1 gaps between them in bin k, where :math:`c_k` of t inputs fell, bets that bin k becomes
    :math:`g_k` times as likely are placed against a Pólya urn,

    .. math:: \pi_k = \frac{n_k + c_k}{n + 1 + t}, \qquad
        b_k = \frac{n_k g_k + c_k}{n + 1 + t} \text{ from the start,} \qquad
        b_k = \frac{\pi_k g_k}{\sum_l \pi_l g_l} \text{ later.}

    What they are worth, the evidence, is a martingale that starts at 1 (docs/monitoring.md says why). Equal scores are
    put in a random order, and infinite ones, of inputs that the network gives NaN for, are the highest.

    Args:
        calibration: scores of unseen in-distribution inputs, (n,), or a `Calibration` that was fitted to them.
        false_alarm: how often a stream that does not drift may ever raise an alarm.
        seed: of the order of equal scores; monitors whose counts are put together need different ones.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> monitor = Monitor(torch.randn(500, generator=generator))
        >>> monitor.update(torch.randn(5000, generator=generator))
        False
        >>> monitor.update(torch.randn(200, generator=generator) + 1)  # one deviation higher
        True
        >>> monitor
        Monitor(500 calibration scores, 5,200 inputs, drifted after about 5,002, seen after 5,041)
    """

    def __init__(self, calibration: Calibration | Tensor | Any, false_alarm: float = 0.01, *, seed: int = 0) -> None:
        if not isinstance(calibration, Calibration):
            calibration = Calibration().fit(calibration)
        known = calibration.scores.detach().cpu().double()
        if not len(known):
            raise ValueError("there are no calibration scores: fit the Calibration to scores of unseen data first.")
        self.samples, self.false_alarm = len(known), check_share("false_alarm", false_alarm)
        self.width = TIES * calibration.margin
        self.usual = float(known[known.isfinite()].abs().median().nan_to_num(1.0)) or 1.0
        self._random = torch.Generator("cpu").manual_seed(io.plain(seed) + 1)
        self.reset()
        # All monitors of one calibration have the same edges. Another calibration has another order of equal scores: if
        # it were the same for all, an unlucky one would be unlucky in every stream.
        own = int.from_bytes(blake2b(known.numpy().tobytes(), digest_size=7).digest())
        fixed = torch.Generator("cpu").manual_seed(own)
        ranks = self.sizes.cumsum(0)[:-1].long()
        self.edges = self._untied(known, fixed).sort().values[ranks - 1]  # (K - 1,)

    @classmethod
    def of(cls, detector: Detector, false_alarm: float = 0.01, *, seed: int = 0) -> Self:
        """A monitor for what a calibrated detector returns."""
        if detector.head is None or detector.head.calibration is None:
            raise RuntimeError(
                "there is nothing to compare a stream with: call fit(train, calibration=unseen) with data that the "
                "network was not trained on."
            )
        if detector.calibrated == "holdout":
            warn(
                "the detector is calibrated on a part of the training data, which the network has seen: new inputs may "
                "look like drift from the start. Pass calibration= with unseen data."
            )
        return cls(detector.head.calibration, false_alarm, seed=seed)

    def reset(self) -> None:
        """Forget the stream: what comes from now on is another one, with a false-alarm rate of its own."""
        self.inputs, self.log_evidence, self.log_highest = 0, 0.0, 0.0
        self.alarm: int | None = None
        self.since: int | None = None
        self.sizes = _sizes(self.samples)  # (K,) gaps between calibration scores, per bin
        self.counts = torch.zeros_like(self.sizes)  # (K,) inputs per bin
        self._bets = _bets(self.sizes)  # (J, K)
        self._worth = self._bets.new_full((2 * len(self._bets),), -math.inf)  # log, of each bet
        self._best, self._start = self._worth, torch.zeros_like(self._worth)  # of the best start

    @property
    def drifted(self) -> bool:
        """Whether drift was seen: after `alarm` inputs; it seems to have begun after `since`."""
        return self.alarm is not None

    @property
    def evidence(self) -> float:
        """What the bets are worth now: 1 at the start; there is an alarm when it reaches 1 / false_alarm."""
        return math.exp(min(self.log_evidence, 690.0))

    @property
    def p_value(self) -> float:
        """How often a stream without drift ever brings as much evidence as there was so far, at most."""
        return math.exp(-self.log_highest)

    def update(self, scores: Tensor | Uncertainty | Monitor | Any) -> bool:
        """Take the next inputs, in their order, and tell whether the stream has drifted, now or before.

        Args:
            scores: what a detector returned, or epistemic scores, (n,). Or another monitor with the same calibration:
                what it has counted since its reset becomes one block, within which the order does not matter.
        """
        if isinstance(scores, Monitor):
            if not torch.equal(self.edges, scores.edges):
                raise ValueError("monitors can be put together where they have the same calibration; these differ.")
            if scores.inputs:
                self._take(_block(self._bets, self.sizes, self.counts, scores.counts), scores.inputs)
                self.counts = self.counts + scores.counts
            return self.drifted
        bins = torch.searchsorted(self.edges, self._untied(_one_per_input(scores), self._random))
        for some in bins.split(ROWS) if len(bins) else ():
            each = torch.nn.functional.one_hot(some, len(self.counts)).double()  # (n, K)
            urn = self.sizes + self.counts + each.cumsum(0) - each  # (n, K) before each input
            here, bets = urn.gather(1, some[:, None]), self._bets.T[some]  # (n, 1) (n, J)
            early = 1 + self.sizes[some, None] * (bets - 1) / here
            later = bets * urn.sum(1, keepdim=True) / (urn @ self._bets.T)
            self._take(torch.cat([early, later], 1).log(), 1)
            self.counts = self.counts + each.sum(0)
        return self.drifted

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state to a safetensors file, to go on from later."""
        tensors = {name: getattr(self, name) for name in TENSORS} | {"random": self._random.get_state()}
        io.write(path, {"kind": "Monitor"} | {name: getattr(self, name) for name in NUMBERS}, tensors)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a monitor that `save` wrote."""
        header, tensors = io.read(path)
        if header.get("kind") != "Monitor":
            raise io.Unusable(f"'{path}' holds no monitor: expected a file that Monitor.save wrote.")
        monitor = cls.__new__(cls)
        with io.blaming(path):
            monitor.samples = header["samples"]
            monitor.reset()
            monitor.edges = monitor.sizes[1:]
            for name in TENSORS:
                known, found = getattr(monitor, name), tensors[name]
                io.expect((found.shape, found.dtype) == (known.shape, known.dtype), f"{name} has another shape or type")
            vars(monitor).update({name: header[name] for name in NUMBERS} | {name: tensors[name] for name in TENSORS})
            io.expect(monitor.counts.sum() == monitor.inputs, "its counts do not add up to its inputs")
            monitor._random = torch.Generator("cpu")
            monitor._random.set_state(tensors["random"])
        return monitor

    def metrics(self, **labels: str) -> str:
        """The state as Prometheus reads it, with labels such as `model="digits"`.

        Example:
            >>> print(Monitor(torch.arange(99.0)).metrics(model="digits").splitlines()[2])
            hidden_uncertainty_monitor_inputs_total{model="digits"} 0
        """
        quoted = [f"{name}={json.dumps(str(value), ensure_ascii=False)}" for name, value in labels.items()]
        lines = []
        for name, (kind, text, value) in {
            "inputs_total": ("counter", "Inputs seen.", self.inputs),
            "evidence": ("gauge", "Evidence of drift, 1 at the start.", self.evidence),
            "alarm_evidence": ("gauge", "Evidence at which there is an alarm.", 1 / self.false_alarm),
            "drifted": ("gauge", "1 since there was an alarm, else 0.", int(self.drifted)),
        }.items():
            name = f"hidden_uncertainty_monitor_{name}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines.append(f"{name}{'{' + ','.join(quoted) + '}' if quoted else ''} {value:.10g}")
        return "\n".join(lines) + "\n"

    def write_metrics(self, path: str | PathLike[str], **labels: str) -> None:
        """Write `metrics` to a file in one step, such as a `.prom` for the textfile collector of the node exporter."""
        with io.replacing(path) as file:
            file.write(self.metrics(**labels).encode())

    def __repr__(self) -> str:
        state = f"drifted after about {self.since:,}, seen after {self.alarm:,}" if self.drifted else "no drift seen"
        return f"Monitor({self.samples:,} calibration scores, {self.inputs:,} inputs, {state})"

    def _untied(self, scores: Tensor, generator: torch.Generator) -> Tensor:
        """The scores in float64, apart from each other by less than the margin of ties, so that all have an order."""
        finite = scores.clamp(-HIGHEST, HIGHEST)
        noise = 2 * torch.rand(len(scores), generator=generator, dtype=torch.float64, device="cpu") - 1
        return finite + self.width * finite.abs().clamp(min=self.usual) * noise

    def _take(self, steps: Tensor, inputs: int) -> None:
        """Go on by steps of so many inputs each: the logarithms of what each bet is multiplied by, (n, 2 J)."""
        before = self.inputs + inputs * torch.arange(len(steps), dtype=torch.float64, device="cpu")  # (n,)
        gain = steps.cumsum(0)
        stakes = _stakes(before, inputs).repeat_interleave(len(self._bets), 1) / len(self._bets)  # (n, 2 J)
        worth = torch.cat([self._worth[None], stakes.log() + steps - gain]).logcumsumexp(0)[1:] + gain
        begun = torch.where(stakes > 0, steps - gain, -math.inf)
        best, place = torch.cat([self._best[None], begun]).cummax(0)  # of equal stakes
        start = torch.cat([self._start[None], before[:, None].expand_as(steps)]).gather(0, place)
        evidence = torch.logaddexp(worth.logsumexp(1), _unspent(before + inputs).log())  # (n,)
        reached = (evidence >= -math.log(self.false_alarm)).nonzero()
        if self.alarm is None and len(reached):
            first = int(reached[0])
            self.alarm = self.inputs + inputs * (first + 1)
            self.since = int(start[first + 1, (best[first + 1] + gain[first]).argmax()])
            logger.warning(
                f"inputs have drifted, after about {self.since:,} of them (seen after {self.alarm:,}): without drift, "
                f"at most {self.false_alarm:.2%} of all streams ever raise this alarm."
            )
        self._worth, self._best, self._start = worth[-1], best[-1] + gain[-1], start[-1]
        self.log_evidence, self.log_highest = float(evidence[-1]), max(self.log_highest, float(evidence.max()))
        self.inputs += inputs * len(steps)


def _one_per_input(scores: Any) -> Tensor:
    """Scores (n,) in float64, in main memory."""
    given = scores.epistemic if isinstance(scores, Uncertainty) else scores
    values = torch.as_tensor(to_tensor(given), device="cpu").detach()
    if values.dim() != 1:
        raise ValueError(
            f"expected one score per input, (n,); got {tuple(values.shape)}. For pixels, make one number of each map, "
            "here and for Monitor(calibration_scores): u.epistemic.flatten(1).quantile(0.99, dim=1)."
        )
    refuse_nan(values)
    return values.double()


def _sizes(samples: int) -> Tensor:
    """How many of the gaps around so many scores are in each bin, (K,): 1, 1, 2, 4 ... from either end."""
    gaps = samples + 1
    powers = [1 << i for i in range(gaps.bit_length()) if 3 << i < gaps]
    ends = {0, *powers, gaps // 2, *(gaps - power for power in powers), gaps}
    return torch.tensor(sorted(ends), dtype=torch.float64, device="cpu").diff()


def _bets(sizes: Tensor) -> Tensor:
    """How much more likely each bin is than without drift, by each kind of drift, (J, K)."""
    base = sizes / sizes.sum()
    edge = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]) / sizes.sum()  # (K + 1,)
    normal = torch.special.ndtri(edge)
    shifted = [torch.special.ndtr(normal + sign * shift) for shift in SHIFTS for sign in (-1, 1)]
    scaled = [torch.special.ndtr(normal / scale) for scale in SCALES]
    tails = [(1 - part) * edge + part * end for part in TAILS for end in (edge**PEAK, 1 - (1 - edge) ** PEAK)]
    return HEDGE + (1 - HEDGE) * torch.stack(shifted + scaled + tails).diff() / base


def _block(bets: Tensor, sizes: Tensor, before: Tensor, counts: Tensor) -> Tensor:
    """What inputs of known counts, in an unknown order, multiply each bet by, as logarithms, (1, 2 J)."""
    urn, moved = sizes + before, sizes * bets + before  # (K,) (J, K)
    likely = bets * urn / (bets * urn).sum(1, keepdim=True)
    null = (urn + counts).lgamma() - urn.lgamma()
    early = ((moved + counts).lgamma() - moved.lgamma() - null).sum(1)
    later = (counts * likely.log() - null).sum(1) + (urn + counts).sum().lgamma() - urn.sum().lgamma()
    return torch.cat([early, later])[None]


def _unspent(inputs: Tensor) -> Tensor:
    """The part of the stake that waits for drift that begins after so many inputs, of which there is at least one."""
    return (1 + inputs / SOON) ** -DECAY / 2


def _stakes(before: Tensor, inputs: int) -> Tensor:
    """What is staked before each step on drift from the start, and on drift that begins within it, (n, 2)."""
    later = _unspent(before) * -torch.expm1(-DECAY * torch.log1p(inputs / (SOON + before)))
    return torch.stack([(before == 0) / 2, later], 1)
