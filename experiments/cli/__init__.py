"""The command: one module a verb."""
