"""Timelines for ui.perfetto.dev and chrome://tracing."""
