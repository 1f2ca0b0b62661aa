"""Megatron-Core's dynamic context parallelism."""
