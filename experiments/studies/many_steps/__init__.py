"""Many steps on one clock, and the same steps drawn anew."""
