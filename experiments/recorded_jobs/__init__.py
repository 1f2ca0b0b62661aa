"""Recorded operations of a real job."""
