"""The study `layer-depth`."""
