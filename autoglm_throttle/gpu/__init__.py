"""GPU telemetry: providers, samplers, and one aggregated view of all devices."""
