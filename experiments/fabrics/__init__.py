"""What the network of a cluster gives its GPUs, and what flows on it leave each other."""
