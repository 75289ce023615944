"""Limiters between clients and service: none, the real `Throttle`, and limiters of other designs."""
