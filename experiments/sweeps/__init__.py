"""Grids of scenarios: read, simulated, kept, reported."""
