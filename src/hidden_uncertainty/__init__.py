"""Epistemic and aleatoric uncertainty from a trained network's hidden activations."""
