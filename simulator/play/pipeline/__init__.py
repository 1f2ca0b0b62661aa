"""A plan as operations of pipelines: who does what, in which order, fed by whom."""
