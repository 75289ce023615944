"""User limits that several processes share: a store, and what is done while it cannot be asked."""
