"""What a user decides by scores, with a promise: intervals, sets of classes, which inputs to leave unanswered."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from ..extract import Reading
from ..io import expect
from ..stored import Stored
from ..uncertainty import LayerScores, Uncertainty
from .calibration import check_share
from .combination import LOWEST, Tail

if TYPE_CHECKING:
    from .fitted import Fitted

Spread = Literal["variance", "expected_error"]  # what errors and intervals are in units of
FEWEST = 50  # inputs, so that ten of them can say what is rare
LEARN = 5  # one row in so many says what doubt is; the others certify
UNFAMILIAR = 0.5  # weight beside ambiguity, where most mistakes on familiar inputs are: with 1, fewer are accepted
STEPS = 50  # thresholds that are tested
LOOSEST = 0.99  # share of inputs that is accepted at most: far inputs have no bound but this one


class Selection(Stored):
    r"""Scores and errors of labelled unseen inputs, and which new inputs may be answered by them.

    Doubt grows with both scores. It says how rare each is among a fifth of the inputs, drawn at random:

    .. math:: d = -\tfrac12 \log P(\text{epistemic}_i \geq e) - \log P(\text{aleatoric}_i \geq a)

    The same fifth gives thresholds of doubt, from strict to loose. The other inputs certify them: of N with a doubt of
    at most t, K are wrong, and t is certified if P(Binomial(N, error) ≤ K) ≤ 1 - confidence. The first that fails ends
    the search, so that all tests together are wrong as rarely as one (fixed-sequence testing). The strictest accepts
    half of the inputs, or a fifth where there are many: too strict a one leaves too few to certify it.

    Example:
        >>> scores = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0))
        >>> selection = Selection().fit(scores, errors=(scores[:, 1] > 0.9).float())
        >>> selection.refuses(torch.tensor([[0.5, 0.5], [0.5, 0.95], [9.0, 0.5]]), 0.05, 0.95, 0.5)
        tensor([False,  True,  True])
    """

    scores: Tensor  # (n, 2) epistemic and aleatoric, or (n, 1) where that is not told
    errors: Tensor  # (n,) how far off; for classes, 1 where the network is wrong

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scores", torch.zeros(0, 2, device="cpu"))
        self.register_buffer("errors", torch.zeros(0, device="cpu"))
        self._found: dict[tuple[float, ...], tuple[list[Tail], float]] = {}

    def fit(self, scores: Tensor, errors: Tensor) -> Self:
        """Keep what is known of unseen inputs, in an order that does not depend on theirs."""
        rows = torch.cat([scores, errors[:, None].to(scores)], 1).detach().cpu()
        rows = rows[torch.from_numpy(np.lexsort(rows.T.flip(0).numpy()))]
        self.scores, self.errors = (part.to(scores.device) for part in (rows[:, :-1].contiguous(), rows[:, -1].clone()))
        return self

    def refuses(self, scores: Tensor, error: float, confidence: float, tolerance: float) -> Tensor:
        """Which inputs not to answer, (n,), by their scores, (n, 2) or (n, 1); NaN is refused.

        At most a share `error` of answers is off by more than the tolerance, with this confidence.
        """
        key = error, confidence, tolerance
        if key not in self._found:
            self._found[key] = self._certify(*key)
        tails, threshold = self._found[key]
        return ~(_doubt(tails, scores) <= threshold)

    def _certify(self, error: float, confidence: float, tolerance: float) -> tuple[list[Tail], float]:
        """What doubt is, and the largest that is certified."""
        scores, wrong = self.scores.cpu(), self.errors.cpu() > tolerance
        # As if at random, but by what the scores are: digits that neither their order nor rounding decides.
        seed = int(1e4 * torch.frexp(scores.double().sum()).mantissa.abs())
        order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed), device="cpu")
        some, others = order[: len(order) // LEARN], order[len(order) // LEARN :]
        asked, least = f"an error of {error:g} with confidence {confidence:g}", _least(error, confidence)
        needed = max(FEWEST, math.ceil(least / LOOSEST / (1 - 1 / LEARN)))
        if len(scores) < needed:
            raise ValueError(
                f"{asked} needs at least {needed:,} labelled unseen inputs that nothing was learnt from, more if the "
                f"network is wrong for some; there are {len(scores):,}. Calibrate on more, or ask for a higher error."
            )
        weights = (UNFAMILIAR, 1.0) if scores.shape[1] == 2 else (1.0,)
        tails = [Tail.fit(part, weight) for part, weight in zip(scores[some].T, weights, strict=True)]
        known = _doubt(tails, scores[some]).double()
        doubt, place = _doubt(tails, scores[others]).double().sort()
        mistakes = np.append(0, wrong[others][place].cumsum(0))  # among the first 0, 1, ... of the others
        threshold = _loosest(known, doubt, mistakes, error, confidence)
        if threshold is not None:
            return tails, threshold
        text = f"{asked} cannot be promised: {int(wrong.sum()):,} answers to {len(scores):,} unseen inputs are wrong"
        while threshold is None and error < 0.5:
            error *= 1.05
            threshold = _loosest(known, doubt, mistakes, error, confidence)
        if threshold is not None:
            answered = float((doubt <= threshold).double().mean())
            text += f". About {error:.2g} can be, where {answered:.0%} are answered"
        raise ValueError(f"{text}. Ask for a higher error, calibrate on more inputs, or train a better network.")

    def check(self) -> None:
        """Raise a ValueError where these cannot be scores and errors."""
        rows = self.scores.dim() == 2 and self.scores.shape[1] in (1, 2) and len(self.scores) == self.errors.numel()
        expect(rows and bool((self.errors >= 0).all()), "errors of inputs are negative")


def both_scores(scores: LayerScores | Uncertainty, epistemic: Tensor, spread: Tensor | None) -> Tensor:
    """How unfamiliar inputs are and how ambiguous, (n, 2); (n, 1) where only the first is told.

    How far off a predicted number may be, where that is known, says more than the entropy.
    """
    told = [part for part in (spread, scores.log_aleatoric, scores.aleatoric) if part is not None]
    if not told:
        return epistemic[:, None]
    second = told[0].amax(1) if told[0].dim() == 2 else told[0]
    return torch.stack([epistemic, second.to(epistemic)], 1)


def _least(error: float, confidence: float) -> int:
    """How many accepted inputs certify an error if none of them is wrong."""
    return math.ceil(math.log(1 - confidence) / math.log1p(-error))


def _loosest(known: Tensor, doubt: Tensor, mistakes: np.ndarray, error: float, confidence: float) -> float | None:
    """The largest threshold that certifies an error, or None.

    Thresholds come from the doubts `known`. Others, ascending, certify them; `mistakes` says how many of the first
    0, 1, ... of these are wrong.
    """
    from scipy.special import bdtr  # scoring needs no scipy

    least = _least(error, confidence)
    strictest = max(1.2 * least / len(doubt), min(4 * least / len(doubt), 0.5), 0.2)
    shares = torch.linspace(min(strictest, LOOSEST), LOOSEST, STEPS, dtype=torch.float64, device="cpu")
    thresholds = known.quantile(shares)
    accepted = torch.searchsorted(doubt, thresholds, right=True).numpy()
    passed = int((bdtr(mistakes[accepted], accepted, error) <= 1 - confidence).cumprod().sum())
    return float(thresholds[passed - 1]) if passed else None


def _doubt(tails: list[Tail], scores: Tensor) -> Tensor:
    """Of scores (n, 2) or (n, 1), one number each: what is beyond the highest 5 % of one counts squared."""
    rare = torch.stack([tail.rarity(part) for tail, part in zip(tails, scores.T, strict=True)], 1)
    return rare @ rare.new_tensor([tail.weight for tail in tails]) + (rare - LOWEST).clamp(min=0).square().sum(1) / 2


class Decisions:
    """What a detector that was calibrated with labels can decide."""

    def _fitted(self) -> Fitted:
        raise NotImplementedError

    def interval(self, u: Uncertainty, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        r"""Bounds that hold the label of a share of new inputs, whatever the density: split conformal prediction.

        .. math:: \hat y \pm q\, s(z)

        with q from the errors on the calibration data, in units of s(z): P(y between) ≥ coverage over calibration and
        new inputs, if these are exchangeable. s(z) is the deviation that the network predicts, where it predicts one;
        else the expected error, with `condition="label"`; else 1, and all intervals are equally wide. With several
        outputs, all lie between together. For pixels, an image counts as held when the labels of all but a `share` of
        its pixels lie between (see `Pixels`).
        """
        value, head = _scored("interval", u).prediction, self._fitted().head
        term = head.terms[head.leading]
        if not value.is_floating_point():
            raise RuntimeError(
                "intervals are for networks that predict numbers; this one predicts classes, of which "
                "detector.prediction_set(u, coverage) gives a set."
            )
        if term.conformal is None:
            raise RuntimeError(f"intervals {_LABELS}, y of the predictions' shape.")
        if term.spread is not None and u.spread is None:
            raise RuntimeError(f"these scores do not tell how wide intervals are: {_OLDER}")
        unit = torch.ones_like(value) if term.spread is None or u.spread is None else u.spread.to(value.device)
        half = filled(term.conformal.covering(coverage) * unit, u.epistemic.isposinf(), math.nan)
        # A label on the boundary must not be rounded out.
        half = half + 4 * torch.finfo(value.dtype).eps * (value.abs() + half)
        return value - half, value + half

    def prediction_set(self, u: Uncertainty, coverage: float = 0.9) -> Tensor:
        r"""Which classes an input may have, (n, C), so that a share of new inputs has its label among them.

        .. math:: \{ y : -\log p_y \leq q \} \cup \{ \hat y \}

        with q from the labels of the calibration data: P(label in set) ≥ coverage over calibration and new inputs, if
        these are exchangeable (split conformal prediction). The predicted class is always in the set; where the network
        gave NaN, all are.
        """
        value, head = _scored("prediction_set", u).prediction, self._fitted().head
        if value.is_floating_point():
            raise RuntimeError(
                "sets are for networks that predict classes; for numbers, detector.interval(u, coverage) gives bounds."
            )
        if u.probabilities is None:
            raise RuntimeError(
                "sets need the probability of each class for whole inputs, which this detector does not tell: use one "
                "that reads the network's outputs, as LatentDensity(model), SoftmaxEntropy(model) or DeepEnsemble do."
            )
        conformal = head.terms[head.leading].conformal
        if conformal is None:
            raise RuntimeError(f"sets {_LABELS}, y one class per input, from 0. {_AGAIN}")
        among = ~(surprisals(u.probabilities) > conformal.covering(coverage))
        return among.scatter(1, value[:, None].to(among.device), True)

    def abstain(
        self, u: Uncertainty, error: float = 0.01, confidence: float = 0.95, *, tolerance: float | None = None
    ) -> Tensor:
        """True for inputs that the network should not answer, (n,): by both scores, with a bound on wrong answers.

        Of new inputs from the source of the calibration data that are answered, at most a share `error` is wrong, with
        this confidence over the draw of the calibration data; see `Selection`. Inputs from elsewhere have no such
        bound: they are refused as far as their scores are high. At least about 1 % of all inputs is refused.

        Args:
            u: what the detector returned.
            error: the largest share of wrong answers among those given.
            confidence: the probability that it is kept.
            tolerance: for networks that predict numbers, errors |y - prediction| above it are wrong; the largest counts
                where there are several outputs.
        """
        selection, numbers = self._fitted().head.selection, _scored("abstain", u).prediction.is_floating_point()
        if u.epistemic.dim() != 1:
            raise RuntimeError("abstain is for whole inputs, and these are maps: u.surprising tells pixels apart.")
        if selection is None:
            shape = "y of the predictions' shape" if numbers else "y one class per input, from 0"
            raise RuntimeError(f"decisions to abstain {_LABELS}, {shape}. {_AGAIN}")
        if numbers != (tolerance is not None) or (tolerance is not None and not tolerance >= 0):
            raise ValueError(
                "for networks that predict numbers, say how far off is wrong, in the output's unit: abstain(u, "
                f"tolerance=0.5). A predicted class is right or wrong, without one. This one predicts "
                f"{'numbers' if numbers else 'classes'}, and tolerance is {tolerance}."
            )
        scores = both_scores(u, u.epistemic, u.spread)
        if scores.shape[1] != selection.scores.shape[1]:
            raise RuntimeError(f"these scores do not tell what doubt is: {_OLDER}")
        error, confidence = check_share("error", error), check_share("confidence", confidence)
        return selection.refuses(scores, error, confidence, 0.5 if tolerance is None else float(tolerance))


def surprisals(probabilities: Tensor) -> Tensor:
    """-log p, finite; unlike 1 - p, it tells small ones apart."""
    return -probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log()


_LABELS = (
    "need labelled data that the network was not trained on: call fit(train, calibration=unseen) with a loader that "
    "gives (x, y)"
)
_AGAIN = "A detector that an earlier version saved needs calibrate(unseen) once more."
_OLDER = "they are older than the calibration, or of another detector. Score the inputs again."


def _scored(what: str, u: Any) -> Uncertainty:
    if not isinstance(u, Uncertainty):
        raise TypeError(
            f"{what} takes what a detector returned, not {type(u).__name__}: score inputs first, with "
            f"detector.{what}(detector(x))."
        )
    if u.prediction.dim() == 2 and not u.prediction.is_floating_point():
        raise RuntimeError(
            f"{what} is not for several labels per input: decide by u.surprising, and by u.aleatoric_per_label about "
            "each label."
        )
    return u


def unit_of(spread: Spread | None, reading: Reading, scores: LayerScores) -> Tensor | None:
    """What errors are in units of, above zero; None are the output's own."""
    variance = reading.prediction.variance
    unit = scores.expected_error if spread == "expected_error" else None
    if spread == "variance" and variance is not None:
        unit = variance.sqrt()
    return None if unit is None else unit.clamp(min=torch.finfo(unit.dtype).tiny)


def filled(values: Tensor, where: Tensor | None, value: float) -> Tensor:
    """The values, with another where a mask of inputs or pixels says so."""
    if where is None:
        return values
    mask = where.to(values.device)
    return values.masked_fill(mask.reshape(mask.shape + (1,) * (values.dim() - mask.dim())), value)
