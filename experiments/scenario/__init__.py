"""A scenario file becomes a setup."""
