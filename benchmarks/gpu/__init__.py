"""What `benchmarks.gpu_closed_loop` is made of."""
