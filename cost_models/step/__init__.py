"""The cost of a micro-batch, and of what surrounds the micro-batches of a step."""
