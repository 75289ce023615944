"""The parts of benchmarks.breaker: breakers of others and ours, what they cost and whom they let through."""
