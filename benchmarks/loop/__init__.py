"""A simulated service and its clients in virtual time, around the real `Throttle`: a closed loop."""
