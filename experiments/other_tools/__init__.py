"""Other tools' configurations as scenarios, scenarios as other tools' flags, and a first scenario from five answers."""
