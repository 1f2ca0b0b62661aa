"""What a cluster is made of, and the catalog of parts."""
