"""How a model is cut over GPUs, and whether it can be."""
