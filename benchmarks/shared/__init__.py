"""Parts of ``benchmarks.redis``: the measured libraries, the load, and the counters of the server."""
