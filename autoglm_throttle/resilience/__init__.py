"""Guards around calls that leave the process: circuit breakers, fallbacks and graceful degradation."""
