"""The study `depth-estimation`."""
