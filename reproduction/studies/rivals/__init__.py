"""The study `rivals`."""
