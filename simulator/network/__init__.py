"""Transfers that share links: fair rates, and a network of flows on SimPy's clock."""
