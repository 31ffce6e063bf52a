"""The command line, `hidden-uncertainty`."""
