"""The study `table-1-fcnet` as tables in Markdown."""

from ..table_1.table import render

__all__ = ["render"]
