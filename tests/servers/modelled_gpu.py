"""One simulated GPU and the service in front of it, in a process of its own."""

from __future__ import annotations

from autoglm_throttle.testing.simulated import BatchSpec, SimulatedGpu, SimulatedGpuSpec, service
from examples.demo.process import read_config, serve


def main() -> None:
    """Serve a GPU whose capacity in requests/s is the first line of the standard input."""
    capacity_rps = read_config()["capacity_rps"]
    work = BatchSpec(max_batch=16, base_s=1.0 / capacity_rps, capacity_rps=capacity_rps)
    sim = SimulatedGpu(SimulatedGpuSpec(work=work, request_bytes=SimulatedGpuSpec().request_bytes // 100))
    serve(service(sim), connections=2_000)


if __name__ == "__main__":
    main()
