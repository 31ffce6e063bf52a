"""The study `table-1-resnet` as tables in Markdown."""

from ..table_1.table import render

__all__ = ["render"]
