"""What follows from what the GPUs say."""
