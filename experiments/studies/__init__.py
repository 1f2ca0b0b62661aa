"""One scenario or several, compared."""
