"""What happened on the links of a network."""
