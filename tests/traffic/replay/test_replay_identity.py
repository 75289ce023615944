"""Record, replay, record again: the data and the decisions of a limiter stay equal."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from autoglm_throttle import Settings, Throttle
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.settings.groups.callers import CallerSettings
from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.testing.simulated import BatchSpec, SimulatedGpu, SimulatedGpuSpec, service
from autoglm_throttle.traffic.inproc import VirtualClock, run_inprocess
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.record import (
    RecordedRequest,
    Recorder,
    RecorderMiddleware,
    RecorderSettings,
    open_recording,
)
from autoglm_throttle.traffic.replay import Replay, ReplayOptions, Selection, compare_results, prepare
from autoglm_throttle.traffic.request_source import PlannedRequest, RequestSource
from autoglm_throttle.traffic.results import Result
from autoglm_throttle.types import Priority

SERIAL = itertools.count()
VALUES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=9)
FIELDS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["accept", "user-agent", "content-type", "x-kept"]), VALUES),
        st.tuples(st.just("x-priority"), st.sampled_from(["high", "Low", "mid"])),
    ),
    max_size=4,
)
REQUESTS = st.builds(
    PlannedRequest,
    method=st.sampled_from(["GET", "POST", "PUT"]),
    target=st.builds(
        "/{}{}".format, st.sampled_from(["", "a/b", "a%20b", "~"]), st.sampled_from(["", "?*=*", "?k=1"])
    ),
    headers=FIELDS.map(tuple),
    body=st.binary(max_size=20),
    priority=st.just(False),
)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Reads everything, answers nothing."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def recorder(folder: Path, clock: VirtualClock) -> Recorder:
    return Recorder(
        RecorderSettings(
            path=folder / f"{next(SERIAL)}.jsonl", headers=("x-kept",), query=("k",), body=RecordBody.FULL
        ),
        CallerSettings(key_secret=SecretStr("a secret of this test")),
        clock=clock,
        client_header="x-client",
    )


def recorded(folder: Path, load: RequestSource) -> list[RecordedRequest]:
    """Record a load and return the recording."""
    clock = VirtualClock()
    kept = recorder(folder, clock)
    run_inprocess(RecorderMiddleware(echo, kept), load, clock=clock)
    return entries(kept)


def entries(kept: Recorder) -> list[RecordedRequest]:
    assert kept.file is not None
    recording = open_recording(kept.file)
    found = list(recording.entries())
    assert recording.problems.count == 0
    assert kept.counts.dropped == 0
    return found


def plain(one: RecordedRequest) -> dict[str, Any]:
    """All that is kept, without the field that the sender writes itself, and without times."""
    found: dict[str, Any] = json.loads(one.to_line())
    found["headers"] = [pair for pair in found["headers"] if pair[0] != "content-length"]
    for name in ("t", "ms", "ttfb_ms"):
        del found[name]
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15, deadline=None)
@given(requests=st.lists(REQUESTS, min_size=1, max_size=4, unique=True), seed=st.integers(0, 99))
def test_a_replay_is_recorded_as_the_recording_was(
    tmp_path: Path, requests: list[PlannedRequest], seed: int
) -> None:
    crowd = PriorityMix(clients=3, skew=1.0, kinds=(1.0,) * len(requests))
    load = RequestSource(make_plan(LoadShape.parse("fixed:30:0.4"), Arrivals.POISSON, crowd, seed), requests)
    if not len(load.plan):
        return
    first = recorded(tmp_path, load)
    assert len(first) == len(load.plan)
    assert {one.client for one in first} <= {one.client for one in first if len(one.client) == 16}
    second = recorded(tmp_path, prepare(first).load)
    assert [plain(one) for one in second] == [plain(one) for one in first]
    gaps = [after.t_s - before.t_s for before, after in zip(first, second, strict=True)]
    assert max(gaps) - min(gaps) <= 2.1e-6  # each time is rounded twice to 1 us


def throttled(folder: Path, load: RequestSource) -> tuple[Result, list[RecordedRequest]]:
    """A load on the simulated service behind a throttle that rejects some of it."""
    clock = VirtualClock()
    sim = SimulatedGpu(SimulatedGpuSpec(work=BatchSpec(capacity_rps=60.0)), clock=clock)
    chosen = Settings(
        policy="adaptive",
        identity="header:x-client",
        user_limit="20/second",
        priority_header_trust="any",
        key_secret=SecretStr("a secret of this test"),
        retry_jitter=0.0,
    )
    throttle = Throttle(chosen, gpu=sim, sampling="manual", clock=clock)
    kept = recorder(folder, clock)
    app = RecorderMiddleware(ThrottleMiddleware(service(sim), throttle=throttle), kept)

    def watch(_t_s: float) -> dict[str, float]:
        return {"factor_ratio": throttle.tick().factor}

    result = run_inprocess(app, load, clock=clock, watch=watch)
    return result, entries(kept)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> list[RecordedRequest]:
    """A recording of 6 s with a burst, of which some is limited and some is rejected."""
    crowd = PriorityMix(clients=5, skew=1.2)
    load = RequestSource(
        make_plan(LoadShape.parse("step:40,200,40:2"), Arrivals.UNIFORM, crowd, 3), (PlannedRequest(),)
    )
    return throttled(tmp_path_factory.mktemp("first"), load)[1]


def test_the_recording_holds_every_decision(first: list[RecordedRequest]) -> None:
    counts = Counter(one.decision for one in first)
    assert set(counts) == {"admitted", "limited", "shed"}
    assert {one.priority for one in first} == {priority.label for priority in Priority}


def test_in_process_replay_repeats_the_decisions(tmp_path: Path, first: list[RecordedRequest]) -> None:
    made = prepare(first, None, ReplayOptions(body=b"{}"))
    result, second = throttled(tmp_path, made.load)
    found = compare_results(made, result)
    assert found is not None
    assert found["requests"] == len(first)
    assert found["changed"] == {"requests": 0, "ratio": 0.0}
    assert found["differ"]["ratio"] == 0.0
    assert [(one.decision, one.reason, one.status, one.client) for one in second] == [
        (one.decision, one.reason, one.status, one.client) for one in first
    ]


def test_faster_replay_differs_from_the_recording(tmp_path: Path, first: list[RecordedRequest]) -> None:
    made: Replay = prepare(first, Selection(speed=2.0), ReplayOptions(body=b"{}"))
    result, _ = throttled(tmp_path, made.load)
    found = compare_results(made, result)
    assert found is not None
    assert found["differ"]["ratio"] > 0.05
    assert found["seconds"]
