"""Control: turns GPU telemetry into refill rates and memory quotas."""
