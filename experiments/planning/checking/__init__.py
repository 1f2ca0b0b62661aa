"""What a scenario wastes, and which change helps."""
