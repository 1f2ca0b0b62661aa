"""Analytical cost models: hardware, models, kernels, fabric, collectives, memory, calibration."""
