"""Every error of NVIDIA's library, and a hang of 60 s, under a real server: the real binding, the real ABI.

One server process holds one throttle for each error, so that all of them walk at the same time.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml.build import COMPILER, build
from tests.gpu.driver_service import CODES, DEVICE
from tests.servers import server as servers
from tests.servers.server import Server, ask
from tests.servers.test_servers import UVICORN

pytestmark = [
    pytest.mark.xdist_group("load"),
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc) to build the fake NVIDIA library with"),
]

LOST = {6, 15, 16, 28}
SILENT = {1, 2, 4, 9, 10, 12, 18, 999}
"""Errors that make the source unavailable until they end."""
DUMB = {3, 13, 25}
"""Errors of a missing field, which is not read again before the next opening."""

LADDER = ["fresh", "late", "stale", "blind"]
HANG_US = 600_000_000
STALE_S = 3.0
LONGEST_S = 60.0
"""Seconds until a wait counts as a hang, longer than any response of a busy machine."""
WATCHED_S = 3.9
"""Least seconds of observation: all errors have appeared by then on an idle machine."""


class World:
    """The server and the state of its fake library."""

    def __init__(self, server: Server, state: Path) -> None:
        self.server = server
        self._state = state

    def says(self, **keys: int) -> None:
        """Set the state of each device: ``err_<throttle>`` and ``delay_us_<throttle>``."""
        lines = [f"-1.count={len(DEVICE)}"]
        for name, value in keys.items():
            key, _, throttle = name.rpartition("_")
            lines.append(f"{DEVICE[throttle]}.{key}={value}")
        fresh = self._state.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(self._state)

    def state(self) -> dict[str, Any]:
        return self.server.state()

    def samplers(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.server.get("/samplers").body)
        return found

    def until_fresh(self, *names: str) -> None:
        deadline = time.monotonic() + LONGEST_S
        while old := [name for name in names if self.state()[name]["telemetry"] != "fresh"]:
            assert time.monotonic() < deadline, {name: self.state()[name] for name in old}
            time.sleep(0.05)


class Faults:
    """Collect the records of every throttle from the first error on."""

    def __init__(self, world: World, *names: str) -> None:
        self.states: dict[str, list[str]] = {name: [] for name in names}
        self.ages_s: list[tuple[str, float]] = []
        """State of the hung throttle, and the age of its newest sample."""
        self.answers: dict[str, Counter[int]] = {name: Counter() for name in names}
        self.last: dict[str, Any] = {}
        began_s = time.monotonic()
        with contextlib.closing(world.server.connection()) as connection:
            while time.monotonic() - began_s < (LONGEST_S if self._walking() else WATCHED_S):
                self.last = json.loads(ask(connection, "/state").body)
                for name in names:
                    self._see(name, self.last[name]["telemetry"])
                    self.answers[name][ask(connection, f"/{name}/ok").status] += 1
                hung = self.last["hung"]
                self.ages_s.append((hung["telemetry"], hung["age_s"]))

    def _walking(self) -> bool:
        """Return whether a throttle has not reached the state of its error."""
        ends = {"hung": "stale", **{str(code): "blind" for code in SILENT | DUMB | LOST}}
        return any(self.states[name][-1:] != [state] for name, state in ends.items())

    def _see(self, name: str, telemetry: str) -> None:
        if self.states[name][-1:] != [telemetry]:
            self.states[name].append(telemetry)

    def walked(self, name: str) -> list[str]:
        """Return the states since the last fresh sample: a busy machine is late at times without a fault."""
        states = self.states[name]
        return states[len(states) - 1 - states[::-1].index("fresh") :] if "fresh" in states else states


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("driver")
    environ = build(folder)
    state = Path(environ["FAKE_NVML_FILE"])
    state.write_text(f"-1.count={len(DEVICE)}\n")
    added = {name: environ[name] for name in ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "FAKE_NVML_FILE")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in added.items():
            patch.setitem(servers.ENVIRONMENT, name, value)
        server = Server(*UVICORN, "tests.gpu.driver_service:app")
    try:
        yield World(server, state)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def names(world: World) -> list[str]:
    found = list(world.state())
    for name in found:
        assert world.server.get(f"/{name}/ok").status == 200
    world.until_fresh(*found)
    return found


@pytest.fixture(scope="module")
def faults(world: World, names: list[str]) -> Faults:
    """Start all errors, one for each throttle."""
    errors = {f"err_{code}": code for code in CODES}
    hangs = {"delay_us_joined": HANG_US, "delay_us_hung": HANG_US}
    world.says(**errors, err_pair=15, **hangs)
    return Faults(world, *names)


@pytest.fixture(scope="module")
def healed(world: World, faults: Faults) -> dict[str, Any]:
    """End all errors and hangs."""
    world.says()
    world.until_fresh(*(str(code) for code in SILENT), "hung", "joined")
    return world.state()


@pytest.mark.parametrize("code", sorted(SILENT | DUMB))
def test_silent_driver_degrades_and_all_requests_are_answered(faults: Faults, code: int) -> None:
    name = str(code)
    walked = faults.walked(name)
    assert walked == [step for step in LADDER if step in walked], "down, and never up"
    assert walked[-1] == "blind"
    assert set(faults.answers[name]) == {200}
    assert faults.last[name]["ready"]
    if code in SILENT:
        assert faults.last[name]["failures"][0] >= 3
        assert faults.last[name]["errors"] != [""]
        assert faults.last[name]["sources"] == ["failing"]


@pytest.mark.parametrize("code", sorted(LOST))
def test_lost_device_stops_admission(faults: Faults, code: int) -> None:
    seen = faults.last[str(code)]
    assert (seen["why"], seen["factor"], seen["ready"], seen["health"]) == ("lost", 0.0, False, ["lost"])
    assert faults.answers[str(code)][503] > 0
    assert set(faults.answers[str(code)]) <= {200, 503}, "a loss is an answer, too"


def test_rejection_states_reason_and_retry_after(faults: Faults, world: World) -> None:
    reply = world.server.get("/15/ok")
    assert reply.status == 503
    assert json.loads(reply.body)["reason"] == "gpu:lost"
    assert 1 <= int(reply.headers["retry-after"]) <= 60


def test_one_lost_device_of_two_halves_capacity(faults: Faults) -> None:
    seen = faults.last["pair"]
    assert (seen["factor"], seen["ready"], sorted(seen["health"])) == (0.5, True, ["lost", "ok"])
    assert seen["telemetry"] in {"fresh", "late"}
    assert set(faults.answers["pair"]) == {200}


def test_a_hang_is_stale_within_three_seconds_and_late_before(faults: Faults) -> None:
    assert faults.walked("hung")[-2:] == ["late", "stale"]
    wrong = [(state == "stale") is not (age_s > STALE_S) for state, age_s in faults.ages_s]
    # A snapshot reads the clock more than once: at the moment of the change it may show either state.
    assert not any(one and next_one for one, next_one in pairwise(wrong)), faults.ages_s
    assert set(faults.answers["hung"]) == {200}


def test_an_engine_goes_on_beside_a_hung_driver(faults: Faults) -> None:
    assert set(faults.states["joined"]) <= {"fresh", "late"}
    assert faults.last["joined"]["signal"] == "pressure"
    assert faults.last["joined"]["sources"] == ["hanging", "reading"]
    assert set(faults.answers["joined"]) == {200}


def test_no_receiver_of_samples_has_failed(faults: Faults) -> None:
    assert {seen["callback_errors"] for seen in faults.last.values()} == {0}


def test_each_change_is_logged_once(faults: Faults, world: World) -> None:
    logged = world.samplers()["logged"]
    states = Counter(one["state"] for one in logged if one["event"] == "telemetry_changed")
    walked = Counter(text for name in faults.states for text in set(faults.states[name]))
    assert states["blind"] == walked["blind"] == len(SILENT | DUMB | LOST), "a lost card tells no load"
    lost = Counter(one["event"] for one in logged)["gpu_lost"]
    assert lost == len(LOST) + 1


def test_one_thread_for_each_source_though_some_hang(faults: Faults, world: World) -> None:
    before = Counter(world.samplers()["threads"])
    assert before.total() == len(world.state()) + 1, "joined has two sources"
    assert world.server.get("/restart").status == 200
    assert Counter(world.samplers()["threads"]) == before, "none is started beside a hung one"


@pytest.mark.parametrize("code", sorted(SILENT))
def test_the_end_of_an_error_is_the_end_of_the_silence(healed: dict[str, Any], code: int) -> None:
    seen = healed[str(code)]
    assert (seen["telemetry"], seen["factor"], seen["health"]) == ("fresh", 1.0, ["ok"])


def test_the_end_of_a_hang_is_the_end_of_the_silence(healed: dict[str, Any], world: World) -> None:
    assert healed["hung"]["telemetry"] == healed["joined"]["telemetry"] == "fresh"
    assert Counter(world.samplers()["threads"]).total() == len(healed) + 1
