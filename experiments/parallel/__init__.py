"""Many simulations at once."""
