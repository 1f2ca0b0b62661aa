"""Strict reading: units, YAML, typed fields and their limits."""
