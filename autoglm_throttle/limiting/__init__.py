"""Rate limits, the concurrency limit and user limits."""
