"""What the GPUs say: providers, the sampler that asks them, and one view of the answers."""
