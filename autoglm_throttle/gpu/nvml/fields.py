"""Reads numbered fields of a device: several quantities in one driver call.

Field 185, the mean power of the last second, is not read: the energy counter gives the mean of the exact
interval, and the field was measured elsewhere to cost a thousand times the one for the current power.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.gpu.nvml.calls import UNSUPPORTED_CODES, CallResult, Handle, NvmlCalls, raw_attribute

FIELD_CALL: Final = "nvmlDeviceGetFieldValues"
ALL_LINKS: Final = 0xFFFFFFFF  # Scope of a field that is reported per NVLink: the sum of all
# Member of a value, by its type (``nvmlValueType_t``).
VALUE_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
# InvalidArgument too: an older driver returns it for a number that it does not know.
UNSUPPORTED_FIELD_CODES: Final = UNSUPPORTED_CODES | {2}
# Nanoseconds below the requested clock (``NVML_FI_DEV_PERF_POLICY_POWER``, ``_THERMAL``), in any driver.
POWER_AND_THERMAL: Final = (74, 75)
# First driver version -> numbers of the hardware's thermal slowdown and power brake. They moved: read in
# nvidia-ml-py 12.575.51, 13.580.65 (252, 253) and 13.580.82 (270, 271), where the older numbers became power
# smoothing. Between the two nothing is known, and before 575 they did not exist.
HARDWARE: Final = (((580, 82), (270, 271)), ((580, 66), ()), ((575, 0), (252, 253)))


def throttle_ids(driver: str) -> tuple[int, ...]:
    """Return the fields that count the time slowed down, for a driver such as ``580.126.09``."""
    try:
        major, minor = map(int, driver.split(".")[:2])
    except ValueError:
        return POWER_AND_THERMAL
    return POWER_AND_THERMAL + next((ids for first, ids in HARDWARE if (major, minor) >= first), ())


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """A whole number that is the sum of some fields."""

    name: str
    ids: tuple[int, ...]
    factor: int = 1  # From the driver's unit to the one in the name
    scope: int = 0
    link: bool = False  # Whether it is about a link: left out when a reading takes too long


POWER: Final = FieldSpec("power_mw", (186,))

# Counters of the links. The NVLink errors are the totals of all lanes: checksums of control and of data,
# replays, recoveries, and errors in data that its code found. Meanings as in nvidia-ml-py 13.615.71.
LINKS: Final = (
    FieldSpec("nvlink_tx_bytes", (138,), 1024, scope=ALL_LINKS, link=True),
    FieldSpec("nvlink_rx_bytes", (139,), 1024, scope=ALL_LINKS, link=True),
    FieldSpec("nvlink_errors", (38, 45, 52, 59, 160), link=True),
    FieldSpec("pcie_tx_bytes", (197,), link=True),
    FieldSpec("pcie_rx_bytes", (198,), link=True),
)


def field_specs(driver: str, *, whole: bool) -> tuple[FieldSpec, ...]:
    """Return the fields of a whole device, or those that hold for all MIG instances on one."""
    throttled = FieldSpec("throttled_ns", throttle_ids(driver))
    return (POWER, throttled, *LINKS) if whole else (throttled,)


class FieldReader:
    """Reads the fields of one device, in one call per reading."""

    def __init__(self, calls: NvmlCalls, specs: Sequence[FieldSpec]) -> None:
        self._calls = calls
        # Quantities that the device supports, with the fields that it has.
        self._ids = {spec: spec.ids for spec in specs}

    def read(self, handle: Handle, *, brief: bool = False) -> dict[str, int]:
        """Read every field that the device may know, by its name; ``brief`` leaves the links out."""
        wanted = [one for one in self._ids if not (brief and one.link)]
        requested = [(number, one.scope) for one in wanted for number in self._ids[one]]
        answers = self._calls.call(FIELD_CALL, handle, requested) if requested else None
        if answers is None:
            return {}
        rest = iter(answers)
        return {one.name: total for one in wanted if (total := self._sum(one, rest)) is not None}

    def _sum(self, spec: FieldSpec, answers: Iterator[CallResult]) -> int | None:
        supported: list[int] = []
        total: int | None = 0
        # The numbers first: zip() would otherwise take an answer of the next quantity.
        for number, answer in zip(self._ids[spec], answers, strict=False):
            code = raw_attribute(answer, "nvmlReturn")
            # Not a failure: the set stays reduced, so the sum of the remaining fields is a steady counter.
            if code in UNSUPPORTED_FIELD_CODES:
                continue
            supported.append(number)
            if code:
                self._calls.handle_error(f"{FIELD_CALL} {spec.name}", self._calls.nvml.NVMLError(code))
                total = None
            elif total is not None:
                total += getattr(
                    raw_attribute(answer, "value"), VALUE_MEMBERS[raw_attribute(answer, "valueType")]
                )
        if supported:
            self._ids[spec] = tuple(supported)
            return None if total is None else total * spec.factor
        del self._ids[spec]
        self._calls.mark_unsupported(f"{FIELD_CALL} {spec.name}", "not supported")
        return None
