"""Many steps on one clock: planner, loaders, storage, checkpoints and host memory beside the steps that need them."""
