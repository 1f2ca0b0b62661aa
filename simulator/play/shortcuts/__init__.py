"""Less to play: ranks, micro-batches and steps that do what others did."""
