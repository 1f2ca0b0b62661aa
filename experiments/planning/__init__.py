"""What should be run, on what: a search over layouts and strategies, and what a scenario wastes."""
