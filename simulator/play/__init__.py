"""Playing a plan: event engine, closed form, and what both share."""
