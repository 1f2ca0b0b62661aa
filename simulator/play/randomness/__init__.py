"""What is drawn at random: jitter, slow machines, tails of collectives."""
