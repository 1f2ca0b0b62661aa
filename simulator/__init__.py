"""Strategies, plans and the two executors that play them: SimPy engine and closed-form replay."""
