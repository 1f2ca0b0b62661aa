"""What breaks, how often, and what it costs."""
