"""Parts of the benchmark of the load generator."""
