"""Parts of benchmarks.breaker: circuit breakers of several libraries, cost and half-open state."""
