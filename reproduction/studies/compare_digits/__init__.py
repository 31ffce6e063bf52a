"""The study `compare-digits`."""
