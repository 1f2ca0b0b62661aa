"""Files, tables, plots and timelines."""
