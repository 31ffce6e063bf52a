"""The paper on real data: data sets, networks, training, studies and claims. Run `python -m reproduction`."""
