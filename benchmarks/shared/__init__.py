"""Parts of ``benchmarks.redis``: who is measured, how they are driven, what the server says about it."""
