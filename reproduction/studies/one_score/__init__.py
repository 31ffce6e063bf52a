"""The study `one-score`."""
