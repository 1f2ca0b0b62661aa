"""Verbs that answer what to run, on what, and what a change would buy."""
