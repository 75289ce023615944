"""The cases over the compiled library: the real binding and the real ABI, in a process of its own.

``python -m tests.fake_nvml.compiled`` prints one JSON object, case -> traceback or null.
The loader must find the fake library, and ``FAKE_NVML_FILE`` names its state.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pynvml

from autoglm_throttle.gpu.nvml.provider import NvmlProvider
from autoglm_throttle.gpu.sampler import Sampler
from autoglm_throttle.gpu.select import providers
from autoglm_throttle.settings.groups.gpu import GpuSettings
from tests.fake_nvml.cases import state_key
from tests.fake_nvml.every import CASES, cases_of

PATIENCE_S = 60.0
HANG_US = 600_000_000
MOST_CALLS = 2500
"""Of a reading of eight cards; 1,986 under Python 3.11."""


class Library:
    """The compiled library, which reads its state from a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[tuple[int, str], int] = {}
        self.now = 1000.0
        self._lib = ctypes.CDLL("libnvidia-ml.so.1")
        self._opened: int = self._lib.fake_opened()
        self._samples: int = self._lib.fake_samples()
        self.set()

    def set(self, **keys: int) -> None:
        self.state |= {state_key(name): value for name, value in keys.items()}
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(f"{one}.{key}={value}\n" for (one, key), value in self.state.items()))
        fresh.replace(self.path)

    def opened(self) -> int:
        return int(self._lib.fake_opened()) - self._opened

    def references(self) -> int:
        return int(self._lib.fake_references())

    def wait_for_a_hang(self) -> None:
        """Return once a call sleeps in the library."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._lib.fake_sleeping():
            assert time.monotonic() < deadline, "no call hangs"
            time.sleep(0.001)

    def forbidden_calls(self) -> int:
        return int(self._lib.fake_forbidden_calls())

    def samples(self) -> int:
        return int(self._lib.fake_samples()) - self._samples


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("autoglm-throttle-gpu")]


def case_a_hang_in_the_library_leaves_everybody_free(world: Library) -> None:
    came = threading.Semaphore(0)
    sampler = Sampler(NvmlProvider(environ={}), lambda rows: came.release(), interval_s=0.2)
    sampler.start()
    assert came.acquire(timeout=PATIENCE_S)
    (thread,) = threads()
    world.set(d0_delay_us=HANG_US)
    sampler.wake()
    world.wait_for_a_hang()
    sampler.stop()
    assert thread.is_alive()
    sampler.start()
    assert threads() == [thread], "a second thread beside a hung one"
    while came.acquire(blocking=False):
        pass
    world.set(d0_delay_us=0)
    assert came.acquire(timeout=PATIENCE_S), "it goes on when the call returns"
    sampler.stop(join_s=PATIENCE_S)
    assert not thread.is_alive()
    assert world.references() == 0


def case_a_hang_in_the_opening_leaves_the_choice_free(world: Library) -> None:
    world.set(g_delay_us=HANG_US)
    (auto,) = providers(GpuSettings())
    came = threading.Semaphore(0)
    sampler = Sampler(auto, lambda rows: came.release(), interval_s=0.2)
    sampler.start()
    world.wait_for_a_hang()
    sampler.stop(join_s=0.1)
    sampler.start()
    world.set(g_delay_us=0)
    assert came.acquire(timeout=PATIENCE_S)
    sampler.stop(join_s=PATIENCE_S)


def case_eight_cards_are_cheap(world: Library) -> None:
    """A reading makes as many calls, of Python and into the library, as it did when it was measured."""
    world.set(g_count=8)
    source = NvmlProvider(environ={}, clock=lambda: world.now)
    calls = calls_each(source, world)
    source.close()
    assert calls < MOST_CALLS, f"{calls} calls a reading; benchmarks.gpu_sampling tells their time"


def calls_each(source: NvmlProvider, world: Library) -> int:
    """Return the least number of calls of a reading, those of Python and those of C."""
    taken = []
    for _ in range(20):
        world.now += 1.0
        made = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal made
            made += event in {"call", "c_call"}

        sys.setprofile(count)
        rows = source.read()
        sys.setprofile(None)
        taken.append(made)
        assert len(rows) == 8
        assert all(row.health == "ok" and row.notes == () for row in rows)
        assert all(row.nvlink_errors is not None for row in rows), "all groups are read"
    assert all(row.sm_active_ratio is not None for row in rows), "all groups are read"
    return min(taken)


def case_what_blocks_is_never_asked_for(world: Library) -> None:
    """It runs after all others, so it speaks for all of them."""
    assert world.forbidden_calls() == 0


LIBRARY_CASES: dict[str, Callable[[Library], None]] = {**CASES, **cases_of(globals())}
"""All cases, with those for which a plain object cannot stand: it never lets go of the interpreter."""


def main() -> None:
    """Run every case over the compiled library."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    path = Path(os.environ["FAKE_NVML_FILE"])
    results: dict[str, str | None] = {}
    for name, case in LIBRARY_CASES.items():
        world = Library(path)
        while world.references():
            pynvml.nvmlShutdown()
        try:
            case(world)
            results[name] = None
        except BaseException:  # noqa: BLE001 - reported to the parent
            results[name] = traceback.format_exc()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
