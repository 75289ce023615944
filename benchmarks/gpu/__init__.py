"""Parts of `benchmarks.gpu_closed_loop`."""
