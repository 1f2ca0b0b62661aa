"""Weeks-long runs with failures."""
