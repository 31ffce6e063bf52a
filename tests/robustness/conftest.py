import pytest
import torch


def state(model):
    """Everything about a model that a call must leave alone."""
    modules = [
        (
            name,
            module.training,
            *(
                list(getattr(module, hooks).values())
                for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
            ),
        )
        for name, module in model.named_modules()
    ]
    parameters = [(name, p.requires_grad, p.dtype, p.device) for name, p in model.named_parameters()]
    tensors = {name: t.clone() for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return modules, parameters, tensors, gradients


def same(one, other):
    """Bit by bit."""
    assert one[:2] == other[:2]
    for before, after in zip(one[2:], other[2:], strict=True):
        assert before.keys() == after.keys()
        for name, value in before.items():
            now = after[name]
            assert (value is None and now is None) or torch.equal(value, now), name


@pytest.fixture
def untouched():
    """Checks at the end of a test that the models named in it are what they were."""
    kept = []

    def watch(*models):
        kept.extend((model, state(model)) for model in models)

    yield watch
    assert kept, "this test names no model to be left alone"
    for model, before in kept:
        same(before, state(model))
