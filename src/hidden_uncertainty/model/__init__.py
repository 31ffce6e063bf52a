"""All that meets the user's network: batches, capture, evaluation, layers, identity, tasks."""
