"""Our own planner of hybrid data parallelism, hdp-opt, and its parts."""
