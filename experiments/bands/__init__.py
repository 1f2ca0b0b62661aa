"""How far to believe a prediction."""
