"""What Python does to the package, each in one place: threads, forks, locks, wake-ups."""
