"""A simulated inference service: a modelled GPU that batches, and the HTTP service in front of it."""

from autoglm_throttle.traffic.simulate.gpu import SimulatedGpu
from autoglm_throttle.traffic.simulate.service import service
from autoglm_throttle.traffic.simulate.spec import BatchSpec, Done, Item, LlmSpec, SimulatedGpuSpec

__all__ = ["BatchSpec", "Done", "Item", "LlmSpec", "SimulatedGpu", "SimulatedGpuSpec", "service"]
