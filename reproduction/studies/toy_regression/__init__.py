"""The study `toy-regression`."""
