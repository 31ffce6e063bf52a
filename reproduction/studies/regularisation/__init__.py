"""The study `regularisation`."""
