"""What changes of a scenario would buy."""
