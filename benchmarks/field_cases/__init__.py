"""Cases of `benchmarks.field_sockets`: real servers, real sockets and real client packages."""
