"""What a test in tests/robustness tries and what happens then; `robustness_page` writes the page from it."""

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])


def tried(what: str, happens: str) -> Callable[[Test], Test]:
    """Name a test for the page."""
    assert what and happens
    return lambda test: test
