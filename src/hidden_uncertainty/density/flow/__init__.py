"""Conditional normalizing flows."""

from .flow import ConditionalFlow

__all__ = ["ConditionalFlow"]
