"""Verbs that hold predictions against measurements, and fit constants to them."""
