"""The study `truth`."""
