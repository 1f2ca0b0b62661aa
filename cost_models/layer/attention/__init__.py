"""Attention of a layer: segments on one GPU, and what the ranks of a context-parallel group exchange."""
