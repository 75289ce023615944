"""What people see: metrics and log lines. Readers of a Snapshot; no mechanism knows them."""
