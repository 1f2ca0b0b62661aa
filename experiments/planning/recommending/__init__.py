"""The fewest or the cheapest GPUs that meet a goal."""
