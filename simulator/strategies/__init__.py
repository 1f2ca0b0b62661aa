"""Strategies: how a batch of sequences becomes micro-batches on ranks."""
