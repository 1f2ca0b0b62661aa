"""A result as one page to forward: self-contained HTML that needs no network."""
