"""Where every second of a step comes from."""
