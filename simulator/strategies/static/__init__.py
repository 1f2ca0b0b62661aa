"""Static meshes: how sequences are packed, and packs that others made."""
