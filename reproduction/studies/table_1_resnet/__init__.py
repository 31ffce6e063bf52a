"""The study `table-1-resnet`."""
