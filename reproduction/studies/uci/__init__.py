"""The study `uci`."""
