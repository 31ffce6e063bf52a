"""The study `compare-digits` as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .study import read


def render(result: Mapping[str, Any]) -> str:
    """The tables of the comparison.

    Args:
        result: of the study, as its file has it.
    """
    return str(read(result))
