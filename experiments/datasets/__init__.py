"""A whole data set, step by step."""
