"""Many processes on one store, in virtual time."""
