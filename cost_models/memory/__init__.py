"""What GPUs hold: states, activations, what the stack keeps beside them."""
