"""Verbs that list, read and write: catalog, scenarios, traces, other tools' configurations."""
