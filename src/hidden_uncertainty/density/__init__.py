"""Densities p(z|ŷ) of activations given what the network predicts."""
