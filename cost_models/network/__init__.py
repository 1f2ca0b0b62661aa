"""The fabric, its congestion, and collectives on it."""
