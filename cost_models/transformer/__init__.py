"""What is trained: shapes, parameters, FLOP, the contents of pipeline stages."""
