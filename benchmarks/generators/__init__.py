"""What the benchmark of the generator is made of."""
