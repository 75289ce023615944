"""Access to the Python runtime: threads, forks, locks, wake-ups, installed packages."""
