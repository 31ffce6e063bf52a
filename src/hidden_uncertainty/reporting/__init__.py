"""One page about a fitted detector, to look at in any browser and to send to others."""

from .page import report

__all__ = ["report"]
