"""Plots: plain data in, a matplotlib Figure out."""
