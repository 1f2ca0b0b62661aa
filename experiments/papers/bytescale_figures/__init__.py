"""What ByteScale shows besides throughput: lengths, bubbles, kernels, activity, offloading."""
