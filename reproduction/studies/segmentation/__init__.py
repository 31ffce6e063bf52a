"""The study `segmentation`."""
