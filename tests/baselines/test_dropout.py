from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hidden_uncertainty.baselines.dropout import MCDropout, _drop
from hidden_uncertainty.model.tasks import Regression


def seeded(build: Any, seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def classifier() -> nn.Sequential:
    return seeded(
        lambda: nn.Sequential(
            nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(32, 3)
        )
    )


class Uses(nn.Module):
    """A function of a layer and the inputs."""

    def __init__(self, function: Callable[..., Tensor], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.drop = function, layer or nn.Dropout(0.5)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.function(self.drop, *args, **kwargs)


def inputs(n: int = 6, width: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def snapshot(model: nn.Module) -> tuple[Any, ...]:
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    hooks = [len(module._forward_hooks) for module in model.modules()]
    flags = [(p.requires_grad, p.grad is None) for p in model.parameters()]
    return state, modes, hooks, flags


def same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return one[1:] == other[1:] and all(torch.equal(value, other[0][name]) for name, value in one[0].items())


def test_mean_and_variance_of_a_linear_layer() -> None:
    """w·mask(x)/(1-p) has the mean w·x and the variance p/(1-p) Σ (w x)²."""
    p, samples = 0.25, 20_000
    model = seeded(lambda: nn.Sequential(nn.Dropout(p), nn.Linear(4, 1)))
    x = inputs(5)
    weight, bias = model[1].weight.detach(), model[1].bias.detach()
    u = MCDropout(model, samples, task="regression")(x)
    products = x * weight
    variance = p / (1 - p) * products.square().sum(1)
    deviation = (variance / samples).sqrt()
    assert ((u.prediction - products.sum(1) - bias).abs() < 5 * deviation).all()
    torch.testing.assert_close(u.epistemic, variance, rtol=0.06, atol=0.0)
    assert u.aleatoric is None


def test_samples_are_drawn_from_the_distribution_of_a_loop() -> None:
    model, x, samples = classifier(), inputs(), 3000
    u = MCDropout(model, samples)(x)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        model.eval()
        model[3].train()
        p = torch.stack([model(x).softmax(1) for _ in range(samples)])
    own = -(p * p.log()).sum(-1)
    total = -(p.mean(0) * p.mean(0).log()).sum(-1)
    error = own.std(0) / samples**0.5
    assert ((u.aleatoric - own.mean(0)).abs() < 6 * error).all()
    torch.testing.assert_close(u.epistemic, total - own.mean(0), rtol=0.25, atol=1e-3)
    assert torch.equal(u.prediction, p.mean(0).argmax(1))


def test_one_pass_per_sample_is_the_loop_that_one_would_write() -> None:
    model, x = classifier().eval(), inputs()
    u = MCDropout(model, 7, seed=3)(x)
    model[3].train()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        p = torch.stack([model(x).softmax(1) for _ in range(7)])
    own = -(p * p.log()).sum(-1).mean(0)
    torch.testing.assert_close(u.aleatoric, own)
    torch.testing.assert_close(u.epistemic, -(p.mean(0) * p.mean(0).log()).sum(-1) - own, rtol=1e-3, atol=1e-6)


def test_rows_do_not_share_masks() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1))
    row = inputs(1, 64).expand(8, 64)
    epistemic = MCDropout(model, task="regression")(row).epistemic
    assert len(epistemic.unique()) == 8


def test_same_seed_same_result_and_the_generator_goes_on() -> None:
    model, x = classifier(), inputs()
    before = torch.get_rng_state()
    first = MCDropout(model, seed=1)(x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    again = MCDropout(model, seed=1)
    assert torch.equal(again(x).epistemic, first.epistemic)
    assert torch.equal(again(x).epistemic, first.epistemic)
    assert not torch.equal(MCDropout(model, seed=2)(x).epistemic, first.epistemic)


def test_the_model_is_what_it_was_also_when_it_raises() -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ArithmeticError("no")

    model = nn.Sequential(*classifier(), Fails())
    before, state = snapshot(model), torch.get_rng_state()
    with pytest.raises(ArithmeticError):
        MCDropout(model, task="classification")(inputs())
    assert same(snapshot(model), before)
    assert torch.equal(torch.get_rng_state(), state)


def test_nothing_is_in_training_mode_while_it_runs() -> None:
    modes = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            modes.append([module.training for module in model])
            return x

    model = nn.Sequential(*classifier(), Looks()).train()
    MCDropout(model, task="classification")(inputs())
    assert modes and not any(map(any, modes))


def mine(layer: nn.Module, x: Tensor, seed: int = 3) -> Tensor:
    return _drop(layer, x, torch.Generator().manual_seed(seed))


LAYERS = [
    (nn.Dropout, (5, 8)),
    (nn.Dropout, (5, 8, 3)),
    (nn.Dropout1d, (5, 8, 3)),
    (nn.Dropout1d, (8, 3)),  # one input without a batch
    (nn.Dropout2d, (5, 8, 2, 2)),
    (nn.Dropout3d, (5, 8, 2, 2, 2)),
    (nn.Dropout3d, (8, 2, 2, 2)),
]
ALPHA = [(nn.AlphaDropout, (5, 8)), (nn.FeatureAlphaDropout, (5, 8, 2))]


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize(("kind", "shape"), LAYERS)
def test_masks_are_those_of_torch(kind: type[nn.Module], shape: tuple[int, ...], p: float) -> None:
    layer, x = kind(p), torch.rand(*shape)
    for some in (x, x.half(), x.transpose(0, -1).contiguous().transpose(0, -1)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            expected = layer(some)
        torch.testing.assert_close(mine(layer, some), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("kind", "shape"), [*LAYERS, *ALPHA])
def test_every_kind_of_dropout_and_in_place(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    for inplace in (False, True):
        model = Uses(lambda drop, x: drop(x + 0).flatten(1).sum(1), kind(0.5, inplace=inplace))
        u = MCDropout(model, task="regression", seed=1)(torch.rand(*shape) + 1)
        assert (u.epistemic > 0).all()
        ignores = Uses(lambda drop, x: (y := x.clone(), drop(y), y.flatten(1).sum(1))[2], kind(0.5, inplace=inplace))
        found = MCDropout(ignores, task="regression", seed=1)(torch.rand(*shape) + 1)
        alpha = issubclass(kind, (nn.AlphaDropout, nn.FeatureAlphaDropout))  # which torch never works in place
        assert bool((found.epistemic > 1e-6).all()) == (inplace and not alpha)


class Halves(nn.Dropout):
    """Dropout with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.randint(2, x.shape) if self.training else x


@pytest.mark.parametrize(
    "model",
    [
        Uses(lambda layer, x: layer(x, x, x)[0].sum((1, 2)), nn.MultiheadAttention(8, 2, 0.5, batch_first=True)),
        Uses(lambda layer, x: layer(x)[0].sum((1, 2)), nn.GRU(8, 6, 2, dropout=0.5, batch_first=True)),
        Uses(lambda layer, x: layer(x).sum((1, 2)), Halves(0.5)),
        Uses(lambda layer, x: layer(x).sum((1, 2)), nn.AlphaDropout(0.5)),
        Uses(lambda layer, x: layer(x).sum((1, 2)), nn.FeatureAlphaDropout(0.5)),
    ],
)
def test_what_draws_inside_torch_is_seeded_and_the_generator_goes_on(model: nn.Module) -> None:
    x = torch.randn(4, 5, 8)
    for mode in (False, True):
        model.train(mode)
        before, state = snapshot(model), torch.get_rng_state()
        u = MCDropout(model, task="regression")(x)
        assert (u.epistemic > 0).all()
        assert torch.equal(torch.get_rng_state(), state)
        torch.rand(3)
        assert torch.equal(MCDropout(model, task="regression")(x).epistemic, u.epistemic)
        assert same(snapshot(model), before)
    # As the loop that one would write, with the layer alone in training mode.
    model.eval()
    model.drop.train()
    u = MCDropout(model, 7, task="regression", seed=3)(x)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        torch.testing.assert_close(u.prediction, torch.stack([model(x) for _ in range(7)]).mean(0))


def test_the_generator_of_the_process_is_not_touched() -> None:
    drawn = []

    def draws(drop: nn.Module, x: Tensor) -> Tensor:
        drawn.append(torch.rand(2))
        return drop(x).sum(1)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        MCDropout(Uses(draws), task="regression")(inputs())
        torch.manual_seed(0)
        assert all(torch.equal(torch.rand(2), found) for found in drawn)


def test_threads_sample_one_model_side_by_side() -> None:
    model, seeds = classifier().eval(), range(8)
    expected = [MCDropout(model, seed=seed)(inputs()).epistemic for seed in seeds]
    before = snapshot(model)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            found = list(pool.map(lambda seed: MCDropout(model, seed=seed)(inputs()).epistemic, seeds))
            assert all(map(torch.equal, found, expected))
    assert same(snapshot(model), before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("padded", [True, False])
def test_transformers_whose_fused_path_leaves_dropout_out(padded: bool) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.out = nn.Linear(8, 3)

        def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
            return self.out(self.encoder(x, src_key_padding_mask=padding)[:, 0])

    model = seeded(Encoder).eval()
    before = snapshot(model)
    padding = torch.arange(5) >= torch.tensor([[3], [5], [4], [2]])
    u = MCDropout(model, task="classification")(torch.randn(4, 5, 8), padding if padded else None)
    assert (u.epistemic > 1e-4).all()
    assert same(snapshot(model), before)


def shared(*shape: int) -> nn.Module:
    """Drops of a table that all rows share, as of embeddings of positions."""
    return Uses(lambda drop, x: x.sum(1) + drop(torch.ones(shape)).sum())


# Nodes and edges: the second input has no batch in front. The other takes inputs (time, batch, width).
GRAPH = Uses(lambda drop, x, edges: x.index_add(0, edges[0], drop(x)[edges[1]]).sum(1))
TIME_FIRST = Uses(lambda drop, x: drop(x).sum((0, 2)))


@pytest.mark.parametrize(
    ("model", "args", "n"),
    [
        (shared(1, 7), (torch.randn(5, 3),), 5),
        (GRAPH, (torch.rand(6, 2) + 1, torch.tensor([[0, 1, 2, 3, 4, 5, 1], [1, 2, 3, 4, 5, 0, 4]])), 6),
        (TIME_FIRST, (torch.randn(3, 5, 4),), 5),
    ],
)
def test_inputs_and_masks_without_a_batch_in_front(model: nn.Module, args: tuple[Tensor, ...], n: int) -> None:
    u = MCDropout(model, 30, task="regression")(*args)
    assert u.epistemic.shape == (n,)
    assert (u.epistemic > 0).all()


def test_keywords_scalars_and_nested_inputs() -> None:

    def takes(drop: nn.Module, pair: Any, *, scale: Tensor, more: dict[str, Tensor], flag: bool) -> Tensor:
        return drop(pair[0] * scale + pair[1] + more["x"]).sum(1)

    x, method = inputs(), MCDropout(Uses(takes), 10, task="regression")
    u = method((x, x), scale=torch.tensor(2.0), more={"x": x}, flag=True)
    assert u.epistemic.shape == (6,)


def test_dropout_in_place_leaves_the_inputs_alone() -> None:
    x = inputs()
    before = x.clone()
    MCDropout(nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(4, 3)))(x)
    assert torch.equal(x, before)


def test_the_mean_of_predicted_variances_is_aleatoric() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2))
    method = MCDropout(model, 50, task=Regression(spread="columns", spread_is="log_variance"))
    u = method(inputs())
    assert u.prediction.shape == u.epistemic.shape == (6,)
    assert (u.aleatoric > 0).all()
    assert method.unit == "squared units of the output"


def test_task_is_inferred_from_labels_of_a_loader() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 1))
    method = MCDropout(model)
    u = method.predict([(inputs(), torch.randn(6))])
    assert method.task.name == "regression"
    assert u.prediction.is_floating_point()


def test_no_inputs() -> None:
    assert len(MCDropout(classifier())(torch.zeros(0, 4))) == 0


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nn.Linear(4, 3), "has no dropout layer"),
        (Uses(lambda _, x: nn.functional.dropout(x, 0.5), nn.Identity()), r"functional\.dropout cannot be seen"),
        (nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3)), r"p=0 only \('0'\)"),
        (nn.GRU(4, 3), r"insert_dropout\(model, 0\.1\)"),
    ],
)
def test_without_dropout(model: nn.Module, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MCDropout(model)


def test_dropout_that_is_never_called() -> None:
    with pytest.raises(RuntimeError, match=r"none of the model's dropout layers \('drop'\) was called"):
        MCDropout(Uses(lambda drop, x: x))(inputs())


def test_one_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        MCDropout(classifier(), samples=1)


def test_a_compiled_model_is_seen_through() -> None:
    model = classifier()
    expected = MCDropout(copy.deepcopy(model))(inputs()).epistemic
    assert torch.equal(MCDropout(torch.compile(model))(inputs()).epistemic, expected)  # type: ignore[arg-type]
