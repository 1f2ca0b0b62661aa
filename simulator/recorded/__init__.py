"""Jobs whose operations were recorded, played again."""
