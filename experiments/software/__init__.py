"""What training stacks do by default: data of the catalog, and the reader that applies it to a run."""
