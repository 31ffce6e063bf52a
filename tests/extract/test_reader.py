"""What is read of a layer does not depend on padding, nor on how recurrent layers return their states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from hidden_uncertainty import GaussianMixture, LatentDensity, Pixels, Reduce
from hidden_uncertainty.extract import activation_of
from hidden_uncertainty.model.batches import Batch
from hidden_uncertainty.reduce import pool_tokens

PLAIN = GaussianMixture(components=1)
WORDS = 30
Text = list[int]


def classes(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """The class of a text is that of its first real token."""
    first = input_ids.gather(1, attention_mask.long().argmax(1, keepdim=True))[:, 0]
    return nn.functional.one_hot(first % 3, 3).float()


class Bag(nn.Module):
    """Words, each for itself."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Embedding(WORDS, 6)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        self.embed(input_ids)
        return classes(input_ids, attention_mask)


class Transformer(Bag):
    """Words with their places among the real ones, which look at each other but not at padding."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.places = nn.Embedding(20, 6)
            block = nn.TransformerEncoderLayer(6, 2, 12, batch_first=True)
            self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        places = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        hidden = self.embed(input_ids) + self.places(places)
        self.encoder(hidden, src_key_padding_mask=attention_mask == 0)
        return classes(input_ids, attention_mask)


class Classifier(Transformer):
    """A transformer whose head reads the mean over real words, or one real word; or gives scores for each of them."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads = reads
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.rnn, self.head = nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 3)
            self.head.weight.data *= 9  # else no output differs by more than rounding

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        real, rows = attention_mask != 0, torch.arange(len(input_ids))
        last = (real * torch.arange(real.shape[1])).amax(1)
        if self.reads == "packed":  # what is packed begins with the first word
            x = self.embed(input_ids)
            x = torch.stack([part.roll(-int(start), 0) for part, start in zip(x, real.int().argmax(1), strict=True)])
            packed = pack_padded_sequence(x, real.sum(1), batch_first=True, enforce_sorted=False)
            return self.head(self.rnn(packed)[1][0][-1])
        places = (real.long().cumsum(1) - 1).clamp(min=0)
        hidden = self.encoder(self.embed(input_ids) + self.places(places), src_key_padding_mask=~real)
        if self.reads == "mean":
            return self.head((hidden * real[:, :, None]).sum(1) / real.sum(1, keepdim=True))
        return self.head(hidden[rows, last]) if self.reads == "last" else self.head(hidden)[rows, last]


def texts(count: int, seed: int) -> list[Text]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 9, (count,), generator=generator).tolist()
    return [torch.randint(WORDS, (size,), generator=generator).tolist() for size in sizes]


def padded(batch: list[Text], left: int = 0, right: int = 0, fill: int = 0) -> dict[str, Tensor]:
    """Texts with `left` places before all, or as many as align their ends where it is -1, and `right` after them."""
    longest = max(map(len, batch))
    width = longest + max(left, 0) + right
    ids, mask = torch.full((len(batch), width), fill), torch.zeros(len(batch), width, dtype=torch.int64)
    for row, text in enumerate(batch):
        start = longest - len(text) if left < 0 else left
        ids[row, start : start + len(text)] = torch.tensor(text)
        mask[row, start : start + len(text)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def loader(some: list[Text], size: int = 40, **options: int) -> list[dict[str, Tensor]]:
    return [padded(some[start : start + size], **options) for start in range(0, len(some), size)]


def fitted(model: nn.Module, layer: str, pool: Any, **options: int) -> LatentDensity:
    detector = LatentDensity(model, {layer: Reduce("tokens", pool=pool, max_dim=4)}, PLAIN, task="classification")
    detector.fit(loader(texts(400, 0), **options), calibration=loader(texts(200, 1), **options))
    detector.threshold(false_alarm=0.1)
    return detector


NETWORKS = [(Bag, "embed"), (Transformer, "encoder"), (Transformer, "encoder.layers.0")]
POOLS = ("mean", "moments", "max", "last")
DETECTORS = {(kind, layer, pool): fitted(kind(), layer, pool) for kind, layer in NETWORKS for pool in POOLS}
SENTENCE = st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=9)


@pytest.mark.parametrize("which", DETECTORS, ids=lambda which: f"{which[0].__name__}-{which[1]}-{which[2]}")
@settings(deadline=None, max_examples=50)
@given(
    text=SENTENCE,
    beside=st.lists(SENTENCE, max_size=3),
    left=st.integers(-1, 4),
    right=st.integers(0, 4),
    fill=st.integers(0, WORDS - 1),
)
def test_a_text_scores_the_same_alone_and_in_any_padding(
    which: Any, text: Text, beside: list[Text], left: int, right: int, fill: int
) -> None:
    detector = DETECTORS[which]
    alone, among = detector(**padded([text])), detector(**padded([text, *beside], left, right, fill))[:1]
    for name in ("epistemic", "aleatoric"):
        torch.testing.assert_close(getattr(among, name), getattr(alone, name), rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(among.p_value, alone.p_value, rtol=0, atol=1e-12)
    assert among.surprising.equal(alone.surprising)


CHOSEN = {
    reads: LatentDensity(Classifier(reads)).fit(loader(texts(600, 0)), calibration=loader(texts(600, 1)))
    for reads in ("mean", "last", "each", "packed")
}


@pytest.mark.parametrize("reads", CHOSEN)
@settings(deadline=None, max_examples=50)
@given(
    text=SENTENCE,
    beside=st.lists(SENTENCE, max_size=3),
    left=st.integers(-1, 4),
    right=st.integers(0, 4),
    fill=st.integers(0, WORDS - 1),
    positional=st.booleans(),
)
def test_nothing_to_choose_scores_the_same_in_any_padding(
    reads: str, text: Text, beside: list[Text], left: int, right: int, fill: int, positional: bool
) -> None:
    detector, batch = CHOSEN[reads], padded([text, *beside], left, right, fill)
    alone, among = detector(**padded([text])), detector(*batch.values()) if positional else detector(batch)
    torch.testing.assert_close(among.epistemic[:1], alone.epistemic, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(among.p_value[:1], alone.p_value, rtol=0, atol=0.004)  # one more score, at most


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("kind", "layer"), NETWORKS)
def test_thresholds_and_principal_components_do_not_depend_on_padding(
    kind: type[nn.Module], layer: str, pool: str
) -> None:
    tight, wide = (fitted(kind(), layer, pool, **options) for options in ({}, {"size": 100, "left": 3, "right": 2}))
    some = padded(texts(50, 2))
    torch.testing.assert_close(wide(**some).epistemic, tight(**some).epistemic, rtol=1e-3, atol=1e-3)
    assert wide(**some).surprising.equal(tight(**some).surprising)


@pytest.mark.parametrize(
    ("pool", "expected"), [("mean", [[2.0, 15.0]]), ("max", [[3.0, 20.0]]), ("last", [[3.0, 10.0]])]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_is_pooled(pool: Any, expected: list[list[float]], dtype: torch.dtype) -> None:
    x = torch.tensor([[[9, 90], [1, 20], [3, 10], [torch.nan, torch.inf]]], dtype=dtype)
    mask, reduce = torch.tensor([[0, 1, 1, 0]]), Reduce("tokens", pool=pool)
    assert pool_tokens(x, pool, mask).tolist() == expected
    assert reduce.flat(x[:, 1:3]).tolist() == expected
    assert bool(pool_tokens(x, pool, torch.zeros(1, 4)).isnan().all())


def test_moments_leave_out_padding() -> None:
    x = torch.tensor([[[9, 90], [1, 20], [3, 10], [torch.nan, torch.inf]]])
    reduce, mask = Reduce("tokens", pool="moments"), torch.tensor([[0, 1, 1, 0]])
    kept = read(reduce, x, attention_mask=mask)
    assert kept.shape == (1, 2, 2)  # two tokens of the same moments
    assert reduce.flat(kept).tolist() == reduce.flat(x[:, 1:3]).tolist() == [[2.0, 15.0, 1.0, 5.0]]
    assert bool(pool_tokens(x, "moments", torch.zeros(1, 4)).isnan().all())


def read(reduce: Reduce, activation: Any, *args: Tensor, **kwargs: Tensor) -> Tensor:
    return activation_of(activation, reduce, Batch(args, kwargs, None), "fc")


def test_masks_by_name_position_and_of_padding() -> None:
    x = torch.tensor([[[1.0], [3.0], [8.0]]])
    real = torch.tensor([[True, True, False]])
    assert read(Reduce("tokens"), x, attention_mask=real).tolist() == [[[2.0]]]
    assert read(Reduce("tokens", mask="real"), x, real=real.float()).tolist() == [[[2.0]]]
    assert read(Reduce("tokens", mask=1), x, x, real.long()).tolist() == [[[2.0]]]
    assert read(Reduce("tokens", mask="~padding"), x, padding=~real).tolist() == [[[2.0]]]
    assert read(Reduce("tokens", mask=None), x, attention_mask=real).equal(x)
    assert read(Reduce("tokens"), x, x).equal(x)
    maps = x.reshape(1, 3, 1, 1)
    assert read(Reduce("tokens"), maps, attention_mask=real[:, :, None]).tolist() == [[[[2.0]]]]
    with pytest.raises(ValueError, match="mask='reel' names none of the network's inputs: 0, 'real'"):
        read(Reduce("tokens", mask="reel"), x, x, real=real)


def test_masks_however_inputs_are_given() -> None:
    x = torch.tensor([[[1.0], [3.0], [8.0]], [[2.0], [4.0], [6.0]]])
    real, lengths = torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.tensor([2, 1])
    expected = [[[2.0]], [[2.0]]]
    for mask in (real, real.bool(), real.float(), real[:, None, None], lengths):
        for args, kwargs in (((x, mask), {}), ((x,), {"real": mask}), ((), {"real": mask, "x": x})):
            batch = Batch(args, kwargs, None, names=("x", "real"))
            for name in ("real", 1):
                assert activation_of(x, Reduce("tokens", mask=name), batch, "fc").tolist() == expected
    added = torch.zeros(2, 3).masked_fill(real == 0, -torch.inf)
    with pytest.raises(ValueError, match="'attention_mask' has numbers below zero, as those that are added"):
        read(Reduce("tokens"), x, attention_mask=added)
    detector, some = DETECTORS[Bag, "embed", "mean"], padded(texts(5, 2))
    assert detector(some["input_ids"], some["attention_mask"]).epistemic.equal(detector(**some).epistemic)


def test_a_mask_of_another_length() -> None:
    x, mask = torch.zeros(2, 5, 3), torch.ones(2, 4)
    assert read(Reduce("tokens"), x, attention_mask=mask).equal(x)  # nothing is padding
    mask[0, 3] = 0
    with pytest.raises(ValueError, match=r"'fc' gave tokens \(2, 5\), but the mask 'attention_mask' .* \(2, 4\)"):
        read(Reduce("tokens"), x, attention_mask=mask)
    assert read(Reduce("tokens", mask=None), x, attention_mask=mask).equal(x)
    assert read(Reduce("channels"), x, attention_mask=mask).equal(x)
    assert read(Reduce("tokens"), x[:, 0], attention_mask=mask).equal(x[:, 0])


def test_a_text_without_real_tokens_has_no_score() -> None:
    detector = DETECTORS[Bag, "embed", "last"]
    some = padded([[1, 2], [3, 4]])
    some["attention_mask"][1] = 0
    with pytest.warns(UserWarning, match="NaN or infin"):
        u = detector(**some)
    assert u.epistemic.isfinite().tolist() == [True, False] and bool(u.surprising[1])


class Recurrent(nn.Module):
    """Words read one after the other, packed or as they come."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], *, packed: bool, first: bool = True, **options: Any) -> None:
        super().__init__()
        self.packed, self.first = packed, first
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embed = nn.Embedding(WORDS, 5)
            self.rnn = kind(5, 4, batch_first=first, **options)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        x = x if self.first else x.transpose(0, 1)
        if self.packed:
            x = pack_padded_sequence(x, attention_mask.sum(1), batch_first=self.first, enforce_sorted=False)
        self.rnn(x)
        return classes(input_ids, attention_mask)


def recurrent(reduce: Reduce, kind: Any, **options: Any) -> LatentDensity:
    model = Recurrent(kind, **options)
    detector = LatentDensity(model, {"rnn": reduce}, GaussianMixture(components=1), task="classification")
    return detector.fit(loader(texts(300, 0)))


@pytest.mark.parametrize("both", [False, True], ids=["forward", "bidirectional"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_and_padded_states_give_the_same_scores(kind: Any, depth: int, both: bool) -> None:
    some, options = texts(30, 3), {"num_layers": depth, "bidirectional": both}
    last = (1, 0) if kind is nn.LSTM else 1
    for reduce in (Reduce("tokens"), Reduce("tokens", pool="last"), Reduce(select=last, batch_axis=1)):
        packed = recurrent(reduce, kind, packed=True, **options)
        found = packed(**padded(some)).epistemic
        alone = torch.cat([packed(**padded([text])).epistemic for text in some])
        torch.testing.assert_close(found, alone, rtol=1e-3, atol=1e-3)
        if not both and reduce.select is None:  # what reads from the end reads padding first, unless it is packed
            for first in (True, False):
                way = reduce if first else Reduce("tokens", pool=reduce.pool, batch_axis=1)
                plain = recurrent(way, kind, packed=False, first=first, **options)
                torch.testing.assert_close(plain(**padded(some)).epistemic, found, rtol=1e-3, atol=1e-3)


def test_packed_sequences_with_the_time_first() -> None:
    torch.manual_seed(0)
    x, sizes = torch.randn(6, 6, 5), torch.tensor([4, 6, 1, 2, 3, 6])  # as many steps as sequences
    rnn = nn.LSTM(5, 4)
    with torch.no_grad():
        output = rnn(pack_padded_sequence(x.transpose(0, 1), sizes, enforce_sorted=False))
    assert read(Reduce("tokens", pool="last", batch_axis=1), output, x)[:, 0].equal(output[1][0][-1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_what_is_read_of_a_recurrent_layer(kind: Any) -> None:
    torch.manual_seed(0)
    rnn, x, sizes = kind(5, 4, num_layers=2, batch_first=True), torch.randn(3, 6, 5), torch.tensor([4, 6, 1])
    with torch.no_grad():
        output = rnn(pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False))
    state = output[1][0] if kind is nn.LSTM else output[1]
    last = read(Reduce("tokens", pool="last"), output, x)[:, 0]
    assert last.equal(state[-1])
    states, _ = pad_packed_sequence(output[0], batch_first=True)
    assert read(Reduce("flatten"), output, x).equal(states)
    select = (1, 0) if kind is nn.LSTM else 1
    assert read(Reduce(select=select, batch_axis=1), output, x).equal(state.transpose(0, 1))
    assert read(Reduce("token", token=-1, select=select, batch_axis=-2), output, x)[:, -1].equal(state[-1])
    with pytest.raises(ValueError, match=r"gave \(2, 3, 4\) for 3 inputs.* Its axis 1 does: Reduce\(batch_axis=1\)"):
        read(Reduce(select=select), output, x)
    for axis in (2, 7):
        with pytest.raises(ValueError, match=rf"its axis {axis} must count the inputs\. Its axis 0 does"):
            read(Reduce(batch_axis=axis), states, x)
    with pytest.raises(ValueError, match=r"read at token -1, which for some inputs is padding.*pool='last'"):
        read(Reduce("token", token=-1), output, x)


def test_a_file_keeps_what_is_read(tmp_path: Path) -> None:
    reduce = Reduce("tokens", select=(1, 0), batch_axis=1, pool="last", mask=None)
    detector = recurrent(reduce, nn.LSTM, packed=True, num_layers=2)
    detector.save(tmp_path / "detector")
    again = LatentDensity.load(tmp_path / "detector", detector.model)
    some = padded(texts(20, 4))
    assert again.terms["rnn"].reduce == reduce
    assert again(**some).epistemic.equal(detector(**some).epistemic)


def test_places_of_pixels_are_not_pooled() -> None:
    class Maps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Tanh()

        def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
            return self.body(x).permute(0, 3, 1, 2)

    x = torch.randn(8, 6, 6, 3, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(6) < torch.randint(2, 7, (8, 6, 1), generator=torch.Generator().manual_seed(1))
    detector = LatentDensity(Maps(), "body", PLAIN, reduce="tokens", pixels=Pixels(), task="classification")
    detector.fit([{"x": x, "attention_mask": torch.ones_like(mask)}])
    whole, some = (detector(x=x, attention_mask=part).epistemic for part in (torch.ones_like(mask), mask))
    assert some.equal(whole) and some.unique().numel() > 100
