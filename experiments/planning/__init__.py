"""What should be run, on what: a search over layouts and strategies."""
