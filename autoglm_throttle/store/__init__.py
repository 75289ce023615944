"""User limits and priority rates that several processes share through a store, with a local fallback."""
