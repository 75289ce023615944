"""HTTP calls and responses: guarding, caching, and fallbacks."""
