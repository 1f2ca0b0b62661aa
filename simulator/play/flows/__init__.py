"""Playing a plan whose transfers share the links of a network."""
