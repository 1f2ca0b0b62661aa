"""Weeks-long runs, many times over."""
