"""The study `table-1-fcnet`."""
