"""Admission of requests: the order of the limits, waiting, refunds and settlement."""
