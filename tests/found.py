"""What a review found wrong in version 0.1.0; `robustness_page` writes a table from it."""

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])


def found(number: str, tried: str, was: str, now: str) -> Callable[[Test], Test]:
    """Name a test for the page: what was tried, what version 0.1.0 did, what happens now."""
    assert number and tried and was and now
    return lambda test: test
