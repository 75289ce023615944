"""A modelled service and its clients in virtual time, round the real `Throttle`: a closed loop."""
