"""Stub."""

from typing import Any


def draw_steps(*a: Any) -> Any:
    from matplotlib.figure import Figure

    return Figure()


def draw_checks(*a: Any) -> Any:
    return {}
