"""The text of the live page: its sentence, and its sections."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import pytest

from autoglm_throttle import Priority
from autoglm_throttle.admission.counters import LIMITED_USERS
from autoglm_throttle.observe import start_alerts
from autoglm_throttle.observe.host import HostView
from autoglm_throttle.observe.metric import MetricsInput
from autoglm_throttle.observe.page.sections import SECTIONS, configuration, sentence
from autoglm_throttle.observe.page.text import MAX_CHARACTERS, cell, duration, number, percent, table
from autoglm_throttle.observe.siblings import Counts, Labels, Series, WorkerView
from autoglm_throttle.observe.timer import SHOWN_USERS, USERS_SERIES
from autoglm_throttle.testing import FakeGpu, ManualClock, throttle_for_tests
from autoglm_throttle.types import ConcurrencyView, GpuSample
from tests.observe.page_states import send, stepped
from tests.observe.scraping import GUARDS, LIMITER, knowing_all, loaded

HOST = HostView(
    cpu_ratio=0.125,
    iowait_ratio=0.01,
    memory_used_bytes=1e9,
    memory_total_bytes=4e9,
    pressure_ratio={"io": 0.03},
    swap_bytes_per_second={"in": 0.0},
    disk_bytes_per_second={"read": 1.5e6},
    network_bytes_per_second={"receive": 12e6},
)


def sections(inputs: MetricsInput, history: Any) -> dict[str, Any]:
    made = (make(inputs, history) for make in SECTIONS)
    return {one["id"]: one for one in made if one is not None}


def rows(section: Any, caption: str) -> list[dict[str, str]]:
    (found,) = (one for one in section["tables"] if one["caption"].startswith(caption))
    return [dict(zip(found["head"], row, strict=True)) for row in found["rows"]]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (number(None), "–"),
        (number(float("inf")), "–"),
        (number(12345.6, "W"), "12,346 W"),
        (number(1.2345, "/s"), "1.23/s"),
        (percent(0.123), "12.3 %"),
        (duration(None), "–"),
        (duration(0.0123), "12.3 ms"),
        (duration(99.0), "99 s"),
        (duration(600.0), "10 min"),
        (duration(86400.0), "24 h"),
        (cell(""), "–"),
        (cell(0), "0"),
        (cell("a\nb\u202ec"), "a b c"),
        (cell("<script>"), "<script>"),
        (cell("x" * 1_000_000), "x" * (MAX_CHARACTERS - 1) + "…"),
    ],
)
def test_values_are_short_plain_text(text: str, shown: str) -> None:
    assert text == shown


def test_a_short_row_is_filled() -> None:
    assert table("t", "a|b|c", [[1]])["rows"] == [["1", "–", "–"]]


def test_sentence_without_load() -> None:
    throttle = throttle_for_tests()
    throttle.tick()
    assert sentence(*stepped(throttle, admitted=15)) == "Not limiting: 1 requests/s are admitted."


def test_sentence_names_the_load_of_reduced_rates() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = 91.0
    throttle.tick(3)
    text = sentence(*stepped(throttle))
    assert text.startswith("Limiting: rates are at 40% of nominal for ")
    assert text.endswith(
        ", because the reduction is held until the load stays lower: GPU utilization is 91 %."
    )
    throttle.gpu.utilization_pct = 99.0
    throttle.tick(3)
    assert sentence(*stepped(throttle)).startswith("Limiting: no request is admitted for ")


def test_sentence_names_the_pressure_of_an_engine() -> None:
    throttle = throttle_for_tests(gpu=FakeGpu(engines=1), gpu_queue_target=1)
    throttle.gpu.queued = 500
    throttle.tick(3)
    assert ": pressure (queue) is 100 %." in sentence(*stepped(throttle))


def test_sentence_names_the_band_at_the_first_sample_above_it() -> None:
    throttle = throttle_for_tests(tier_samples=1)
    throttle.tick()
    inputs, history = stepped(throttle)
    throttle.gpu.utilization_pct = 88.0
    throttle.tick()
    text = sentence(MetricsInput(throttle.snapshot(), inputs.settings), history)
    assert text.startswith("Limiting: rates are at 70% of nominal for 0 ms, because the load is above a band")


def test_sentence_without_telemetry_names_the_cause() -> None:
    throttle = throttle_for_tests(gpu_unknown="closed")
    throttle.tick()
    throttle.gpu.fail_with(RuntimeError("no driver"))
    throttle.clock.advance(3600.0)
    text = sentence(*stepped(throttle))
    assert "because GPU telemetry is missing." in text


def test_sentence_counts_rejections_by_their_reason() -> None:
    throttle = throttle_for_tests(user_limit="5/minute")
    throttle.tick()
    text = sentence(*stepped(throttle, admitted=35))
    assert text == "Limiting: 2 requests/s above the limit of their user are not admitted."


def test_sentence_of_a_dry_run() -> None:
    throttle = throttle_for_tests(user_limit="5/minute", dry_run=True)
    text = sentence(*stepped(throttle, admitted=35))
    assert text == "Not limiting, a dry run: 30 requests would have been rejected since the start."


def test_sentence_names_a_queue() -> None:
    inputs, history = stepped(throttle_for_tests())
    snapshot = dataclasses.replace(inputs.snapshot, concurrency=LIMITER)
    text = sentence(MetricsInput(snapshot, inputs.settings), history)
    assert text == "Not limiting: 0 requests/s are admitted, and 253 wait in the queue."


def test_users_limited_most_are_hashes() -> None:
    throttle = throttle_for_tests(user_limit="1/day", max_users=100_000)
    for user, count in (("alice@example.com", 9), ("bob", 4)):
        send(throttle, count, user)
    section = sections(*stepped(throttle))["users"]
    shown = rows(section, "Of the newest 11 rejections")
    assert [row["rejections"] for row in shown] == ["8", "3"]
    assert all(len(row["hash of the user"]) == 16 for row in shown)
    assert "alice" not in json.dumps(section)
    assert ("users limited", "2") in section["pairs"]


def test_users_limited_most_are_bounded() -> None:
    throttle = throttle_for_tests(user_limit="1/day", rate_mid_rps=100_000)
    for user in range(LIMITED_USERS + 10):
        send(throttle, 2, f"u{user}")
    snapshot = throttle.snapshot()
    assert len(snapshot.limited_users) == LIMITED_USERS
    assert snapshot.limited_users[-1] == f"u{LIMITED_USERS + 9}"
    section = sections(*stepped(throttle))["users"]
    assert len(rows(section, "Of the newest 1,000 rejections")) == SHOWN_USERS


def test_rejections_of_a_dry_run_name_their_users() -> None:
    throttle = throttle_for_tests(user_limit="1/day", dry_run=True)
    send(throttle, 3, "one")
    assert throttle.snapshot().limited_users == ("one", "one")


def test_other_rejections_name_no_user() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = 99.0
    throttle.tick(3)
    send(throttle, 3)
    assert throttle.snapshot().limited_users == ()


def test_every_section_of_a_full_snapshot() -> None:
    clock = ManualClock()
    throttle = loaded({"clock": clock, "gpu": knowing_all(clock)})
    throttle.tick()
    inputs, history = stepped(throttle)
    snapshot = dataclasses.replace(inputs.snapshot, guards=GUARDS)
    made = sections(MetricsInput(snapshot, inputs.settings, host=HOST), history)
    assert list(made) == ["now", "gpu", "classes", "queue", "users", "engines", "guards", "host", "workers"]
    assert dict(made["host"]["pairs"]) == {
        "cores busy": "12.5 %",
        "waiting for disks": "1 %",
        "memory in use": "25 %",
        "pressure: io": "3 %",
        "swap in": "0 MB/s",
        "disks read": "1.5 MB/s",
        "network receive": "12 MB/s",
    }
    (device,) = rows(made["gpu"], "Devices")
    assert (device["utilization"], device["memory"], device["power"]) == ("91 %", "37.5 %", "312 W")
    assert [row["class"] for row in rows(made["classes"], "Requests/s")] == [p.label for p in Priority]
    assert ("limit", "20.5") in made["queue"]["pairs"]
    assert ("learned objective", "6.5 s") in made["queue"]["pairs"]
    (guard,) = rows(made["guards"], "Circuit breakers")
    assert (guard["breaker"], guard["rejected"]) == ("half_open", "33")
    assert rows(made["guards"], "Answers")[0] == {"guard": "vector-db", "answers": "13"}
    assert [row["work class"] for row in rows(made["queue"], "Work")] == ["default", "undeclared"]


def test_one_process_says_that_it_is_alone() -> None:
    section = sections(*stepped(throttle_for_tests()))["workers"]
    assert ("shown", f"process {os.getpid()} only") in section["pairs"]
    assert section["tables"] == []


def test_users_limited_most_are_those_of_all_workers() -> None:
    def worker(process: int, **users: float) -> WorkerView:
        return WorkerView(
            process, 0.0, GAUGES | {USERS_SERIES: {(u,): (n,) for u, n in users.items()}}, 0.0, {}
        )

    inputs, history = stepped(throttle_for_tests())
    workers = (worker(11, one=3.0, two=4.0), worker(12, one=2.0))
    section = sections(dataclasses.replace(inputs, workers=workers), history)["users"]
    assert [list(row.values()) for row in rows(section, "Of the newest")] == [["one", "5"], ["two", "4"]]


GAUGES: Series = {"active_requests": {("high",): (3.0,), ("low",): (1.0,)}, "queued_requests": {}}


def test_each_worker_has_its_rates_and_its_state() -> None:
    series = GAUGES | {USERS_SERIES: {}}
    decided: dict[Labels, Counts] = {
        ("high", "admitted", "ok"): (50.0,),
        ("low", "shed", "gpu"): (10.0,),
        ("", "exempt", "ok"): (5.0,),
    }
    workers = (
        WorkerView(11, 0.0, series, 5.0, {"requests": decided}),
        WorkerView(12, 0.0, series, 0.0, {"requests": decided}),
        WorkerView(13, 20.0, series, 5.0, {"requests": decided}),
    )
    inputs, history = stepped(throttle_for_tests(workers=3))
    section = sections(dataclasses.replace(inputs, workers=workers), history)["workers"]
    assert [list(row.values()) for row in rows(section, "Workers of this service")] == [
        ["11", "10", "2", "4", "0", "running"],
        ["12", "0", "0", "4", "0", "running"],
        ["13", "–", "–", "–", "–", "no data for 20 s"],
    ]
    pairs = dict(section["pairs"])
    assert (pairs["shown"], pairs["WORKERS"]) == ("3 processes of this host", "3")
    assert pairs["guards, work classes and configuration of"] == f"process {os.getpid()}"


def test_sections_without_data_are_left_out() -> None:
    inputs, history = stepped(throttle_for_tests())
    snapshot = dataclasses.replace(inputs.snapshot, concurrency=None, view=None, sources=())
    made = sections(MetricsInput(snapshot, inputs.settings, host=HostView()), history)
    assert made.keys().isdisjoint({"queue", "engines", "guards", "host"})
    assert made["gpu"]["tables"] == []


@pytest.mark.parametrize("device", [{}, {"memory_total_bytes": 0, "memory_used_bytes": 0}])
def test_a_device_without_a_verdict_has_dashes(device: dict[str, int]) -> None:
    inputs, history = stepped(throttle_for_tests())
    view = inputs.snapshot.view
    assert view is not None
    odd = GpuSample(device="<script>", index=3, taken_at_s=0.0, source="x", name="<b>&", **device)  # type: ignore[arg-type]
    snapshot = dataclasses.replace(inputs.snapshot, view=dataclasses.replace(view, devices=(odd,)))
    (row,) = rows(sections(MetricsInput(snapshot, inputs.settings), history)["gpu"], "Devices")
    assert list(row.values()) == ["3", "<b>&", "–", "–", "–", "–", "–", "–", "–"]


def test_a_limit_by_memory_and_an_objective_out_of_reach_are_named() -> None:
    view: ConcurrencyView = dataclasses.replace(
        LIMITER, memory_cap=3.0, slo_unreachable=True, slo_learned=False
    )
    inputs, history = stepped(loaded(concurrency=view))
    snapshot = dataclasses.replace(inputs.snapshot, ready=False, dry_run=True)
    made = sections(MetricsInput(snapshot, inputs.settings), history)
    pairs = dict(made["queue"]["pairs"])
    assert pairs["limit"] == "3"
    assert pairs["bound by memory"] == "yes"
    assert pairs["objective"] == "6.5 s"
    assert pairs["objective out of reach"].startswith("yes")
    assert {"dry run", "ready"} < dict(made["now"]["pairs"]).keys()


def test_configuration_masks_secrets() -> None:
    secret = "a secret of some length"
    throttle = throttle_for_tests(
        key_secret=secret, status_token=secret, redis_url="redis://user:hunter2@localhost:1/0"
    )
    section = configuration(throttle.settings)
    text = json.dumps(section)
    assert secret not in text
    assert "hunter2" not in text
    shown = {row["setting"]: row for row in rows(section, "Settings")}
    assert shown["AUTOGLM_THROTTLE_STATUS_TOKEN"] == {
        "setting": "AUTOGLM_THROTTLE_STATUS_TOKEN",
        "value": "********",
        "source": "code",
    }
    assert shown["AUTOGLM_THROTTLE_SLO_S"]["value"] == "–"


def test_alerts_are_shown_with_their_values_and_runbook() -> None:
    clock = ManualClock()
    gpu = FakeGpu(clock=clock)
    gpu.set(0, utilization_pct=90.0)
    throttle = loaded({"clock": clock, "gpu": gpu})
    inputs, history = stepped(throttle)
    assert "alerts" not in sections(inputs, history)
    alerts = start_alerts(throttle)
    assert alerts is not None
    for _ in range(2):
        inputs, history = stepped(throttle)
    shown = sections(dataclasses.replace(inputs, alerts=alerts.view()), history)["alerts"]
    assert shown["pairs"] == [("firing", "0")]
    first = rows(shown, "Pending")[0]
    assert (first["alert"], first["state"], first["value"]) == ("GpuBusy", "pending", "0.9")
    assert first["runbook"] == "docs/operating.md#gpubusy"
