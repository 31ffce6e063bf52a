"""The study `digits`."""
