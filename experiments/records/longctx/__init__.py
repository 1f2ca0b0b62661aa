"""Published tables of long-context training: rows become scenarios, or attention alone, and are predicted."""
