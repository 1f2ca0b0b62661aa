"""FlexSP: sequences dealt to groups of different sizes by an integer programme."""
