"""A published run becomes a setup."""
