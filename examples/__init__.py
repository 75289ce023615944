"""Programs that run as they are printed."""
