"""The search over layouts and strategies."""
