"""Scenarios: service, load, faults and clients."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.loop.llm_plant import LlmPlantSpec
from benchmarks.loop.offered_load import Load
from benchmarks.loop.plant import PlantSpec

STANDARD = PlantSpec()

ALL = -1
"""Every replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario; times in seconds."""

    name: str
    family: str
    """Name of its chart."""
    load: Load
    plant: PlantSpec | LlmPlantSpec = STANDARD
    slo_s: float = 2.0
    """Objective of the clients."""
    slo_unset: bool = False
    """Whether the settings of the throttle name no objective; otherwise they name that of the clients."""
    mix: tuple[float, float, float] = (0.1, 0.3, 0.6)
    """Shares of high, mid and low."""
    rates_rps: tuple[float, float, float] = (1000.0, 500.0, 100.0)
    """Contractual ceilings."""
    burst: tuple[int, ...] = ()
    """Requests of each class within 0.2 s at the start of every second, instead of the load."""
    pareto: bool = False
    retries: int = 0
    speeds: tuple[tuple[float, int, float], ...] = ()
    """Changes of speed: time, replica, and share of the full speed from then on."""
    taken: tuple[tuple[float, float, int, float], ...] = ()
    """Work of other processes: from, until, device, and the least utilization in percent."""
    warm_s: float = 3.0
    """Warm-up; requests during it are not counted."""
    rises_s: float | None = None
    """Start of a lasting overload."""
    relieved_s: float | None = None
    """End of the disturbance."""
    calm: bool = False
    """Whether every rejection is a false one."""
    of_16: bool = True
    """Whether it counts in the mean of 16."""

    @property
    def duration_s(self) -> float:
        """Return the length of the scenario in seconds."""
        return self.load.duration_s


def _steps(duration_s: float, *steps: tuple[float, float]) -> Load:
    return Load(tuple((begun, multiple, multiple) for begun, multiple in steps), duration_s)


def _step(
    name: str, multiple: float, family: str = "step", plant: PlantSpec = STANDARD, *, pareto: bool = False
) -> Scenario:
    return Scenario(
        name=name,
        family=family,
        load=_steps(60, (0, 0.5), (15, multiple)),
        plant=plant,
        pareto=pareto,
        rises_s=15.0,
    )


SIXTEEN = (
    Scenario(name="steady_0.5x", family="calm", load=_steps(40, (0, 0.5)), calm=True),
    Scenario(
        name="steady_0.5x_batchy",
        family="calm",
        load=_steps(40, (0, 0.5)),
        plant=PlantSpec(base_s=0.040, item_s=0.0075),
        calm=True,
    ),
    _step("step_2x", 2),
    _step("step_5x", 5),
    _step("step_10x", 10),
    Scenario(
        name="spike_10x_10s",
        family="recovery",
        load=_steps(60, (0, 0.5), (15, 10), (25, 0.5)),
        relieved_s=25.0,
    ),
    Scenario(
        name="sawtooth_0.3-3x",
        family="ramp",
        load=Load(tuple((15.0 * n, 0.3, 3.0) for n in range(6)), 90.0),
    ),
    Scenario(name="slow_ramp_0.3-3x", family="ramp", load=Load(((0.0, 0.3, 3.0),), 90.0)),
    _step("heavy_tail_2x", 2, pareto=True),
    Scenario(
        name="fake_busy_0.3x",
        family="calm",
        load=_steps(50, (0, 0.3)),
        taken=((10.0, 40.5, 0, 98.0),),
        calm=True,
    ),
    Scenario(
        name="retry_2x_20s",
        family="recovery",
        load=_steps(80, (0, 0.5), (15, 2), (35, 0.5)),
        retries=3,
        relieved_s=35.0,
    ),
    Scenario(
        name="cap_half_0.9x",
        family="recovery",
        load=_steps(80, (0, 0.9)),
        speeds=((25.0, ALL, 0.5), (50.0, ALL, 1.0)),
        relieved_s=50.0,
    ),
    Scenario(
        name="stall_8s_0.5x",
        family="recovery",
        load=_steps(60, (0, 0.5)),
        speeds=((20.0, ALL, 0.02), (28.0, ALL, 1.0)),
        relieved_s=28.0,
    ),
    Scenario(
        name="hot_gpu_0.6x-2x",
        family="step",
        load=_steps(60, (0, 0.6), (30, 2)),
        plant=PlantSpec(replicas=4, base_s=0.040, item_s=0.0375),
        speeds=((0.0, 0, 0.3),),
        taken=((0.0, math.inf, 0, 98.0),),
        rises_s=30.0,
    ),
    _step("oom_3x", 3, "memory", PlantSpec(memory_each=0.004)),
    _step("oom_tight_3x", 3, "memory", PlantSpec(memory_each=0.02)),
)

EXTRA = (
    Scenario(
        name="slow_2x",
        family="slow",
        load=_steps(1800, (0, 0.5), (450, 2)),
        plant=PlantSpec(base_s=0.30, item_s=0.28125),
        slo_s=60.0,
        warm_s=90.0,
        rises_s=450.0,
        of_16=False,
    ),
    Scenario(
        name="llm_2x",
        family="slow",
        load=_steps(300, (0, 0.5), (60, 2)),
        plant=LlmPlantSpec(),
        slo_s=30.0,
        warm_s=10.0,
        of_16=False,
    ),
    Scenario(
        name="llm_slo_unset_0.7x",
        family="slow",
        load=_steps(300, (0, 0.7)),
        plant=LlmPlantSpec(),
        slo_s=30.0,
        slo_unset=True,
        warm_s=10.0,
        of_16=False,
    ),
)


def _bursts(name: str, capacity_rps: float) -> Scenario:
    """Build bursts just below the ceilings; over a second the service can complete them."""
    return Scenario(
        name=name,
        family="bursts",
        load=_steps(30, (0, 1440.0 / capacity_rps)),
        burst=(900, 450, 90),
        plant=PlantSpec(base_s=1.0 / capacity_rps, item_s=15.0 / 16.0 / capacity_rps),
        calm=True,
        of_16=False,
    )


BURSTS = (_bursts("bursts_0.5x", 2880.0), _bursts("bursts_0.2x", 7200.0))

SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in (*SIXTEEN, *EXTRA, *BURSTS)}
