import pytest

from capture_nets import snapshot


@pytest.fixture
def untouched():
    """Checks at the end of a test that the models named in it are what they were."""
    kept = []

    def watch(*models):
        kept.extend((model, snapshot(model)) for model in models)

    yield watch
    assert kept, "this test names no model to be left alone"
    for model, before in kept:
        assert snapshot(model) == before
