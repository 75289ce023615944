"""What may stand between clients and service: nothing, the real `Throttle`, a limiter of others' design."""
