"""Parts of `benchmarks.vllm`: a model made of nothing, the servers, and their clients."""
