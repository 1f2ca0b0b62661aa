"""Strategies against each other on the same batches."""
