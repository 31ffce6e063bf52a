"""The version, where everything reads it."""

__version__ = "0.2.0"
