"""The command, made of one function a verb; modules are sorted by what is asked."""
