"""The metrics, read back with the parser of prometheus-client."""

import re
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from autoglm_throttle import Demand, Outcome, Permit, Priority, Rejection, Settings, Throttle
from autoglm_throttle.admission.counters import DURATION_BUCKETS_S
from autoglm_throttle.limiting.token_limits import TokenCounts
from autoglm_throttle.observe import METRICS, collector, host
from autoglm_throttle.observe.metric import PREFIX, HistogramSpec
from autoglm_throttle.store.fleet import FleetView
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, throttle_for_tests
from autoglm_throttle.types.requests import DecisionLabel
from docs.generate.metrics import metrics_page
from tests.observe.scraping import (
    GUARDS,
    HOST,
    QUOTA,
    STORE,
    knowing_all,
    loaded,
    scraped,
    states,
    value,
    with_recent,
)

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_each_metric_is_scraped_under_its_name_with_help_and_kind() -> None:
    families = scraped(throttle_for_tests())
    assert list(families) == [spec.name for spec in METRICS]
    for spec in METRICS:
        family = families[spec.name]
        assert family.documentation == spec.help
        assert family.type == {"stateset": "gauge", "info": "gauge"}.get(spec.kind, spec.kind)


def test_each_series_has_the_labels_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_monitor", lambda: SimpleNamespace(current=lambda: HOST))
    clock = ManualClock()
    how = {"clock": clock, "gpu": knowing_all(clock)}
    throttle = loaded(
        how,
        store=STORE,
        fleet=FleetView(4, True, 1, 0),
        quota=QUOTA,
        guards=GUARDS,
        token_counts=TokenCounts(),
    )
    throttle.tick()
    with_recent(throttle)
    recorder = SimpleNamespace(counts=(3, 1, ""))
    for spec, family in zip(METRICS, scraped(throttle, recorder).values(), strict=True):
        assert family.samples, spec.name
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == set(spec.labels)


# FIELD 30
@pytest.mark.parametrize("decision", get_args(DecisionLabel))
def test_each_decision_is_documented(decision: str) -> None:
    (requests,) = (spec for spec in METRICS if spec.name == f"{PREFIX}requests")
    assert decision in requests.help


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [spec.name for spec in METRICS]
    assert len(set(names)) == len(names)
    for spec in METRICS:
        assert re.fullmatch(PREFIX + "[a-z][a-z_]*", spec.name)
        assert not spec.name.endswith(("_total", "_ms", "_count", "_sum"))
        assert spec.help.endswith(".")
        assert isinstance(spec, HistogramSpec) is (spec.kind == "histogram")


def test_registering_reads_nothing() -> None:
    class Silent(ManualThrottle):
        def snapshot(self) -> None:  # type: ignore[override]
            raise AssertionError("nobody asked yet")

    made = throttle_for_tests()
    throttle = Silent(made.settings, made.clock, made.gpu)
    registry = CollectorRegistry()
    registry.register(collector(throttle))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(collector(throttle))


events = st.lists(
    st.tuples(
        st.sampled_from(Priority),
        st.sampled_from([1.0, 2.0, 1000.0]),
        st.sampled_from(Outcome),
        st.floats(0.0, 100.0),
    ),
    max_size=30,
)


@given(events)
def test_counts_are_exactly_what_happened(events: list[tuple[Priority, float, Outcome, float]]) -> None:
    throttle = throttle_for_tests(user_limit="5/minute", rate_low_rps="2/s")
    wanted: Counter[tuple[str, ...]] = Counter()
    durations: dict[str, list[float]] = {priority.label: [] for priority in Priority}
    for priority, cost, outcome, lasts_s in events:
        verdict = throttle.try_admit(Demand(priority, "somebody", cost))
        assert isinstance(verdict, (Permit, Rejection))
        reason = verdict.decision.reason
        name = {"ok": "admitted", "gpu": "shed"}.get(reason.value, "limited")
        wanted[priority.label, name, reason.value] += 1
        throttle.clock.advance(lasts_s)
        if isinstance(verdict, Permit):
            verdict.settle(outcome)
            wanted[priority.label, outcome.value] += 1
            if outcome is not Outcome.NEUTRAL:
                durations[priority.label].append(lasts_s)
        throttle.admission.record_exempt()
    wanted["none", "exempt", "ok"] = len(events)
    families = scraped(throttle)
    rejected = sum(sample.value for sample in families[PREFIX + "rejections"].samples)
    assert rejected == sum(count for labels, count in wanted.items() if labels[1] in {"limited", "shed"})
    counts = {
        tuple(sample.labels[label] for label in spec.labels): sample.value
        for spec in METRICS
        if spec.name in {PREFIX + "requests", PREFIX + "outcomes"}
        for sample in families[spec.name].samples
    }
    assert {labels: count for labels, count in counts.items() if count} == {
        labels: count for labels, count in wanted.items() if count
    }
    for label, lasted in durations.items():
        _check_histogram(families[PREFIX + "request_duration_seconds"], label, lasted)


def _check_histogram(family: Metric, priority: str, lasted: list[float]) -> None:
    mine = [sample for sample in family.samples if sample.labels["priority"] == priority]
    buckets = [
        (float(sample.labels["le"]), sample.value) for sample in mine if sample.name.endswith("_bucket")
    ]
    assert [edge for edge, _ in buckets] == [*DURATION_BUCKETS_S, float("inf")]
    # A clock reading is rounded, so a duration within that rounding of an edge may fall on either side.
    for edge, count in buckets:
        below = sum(one <= edge - 1e-9 for one in lasted)
        assert below <= count <= sum(one <= edge + 1e-9 for one in lasted)
    totals = {sample.name.rpartition("_")[2]: sample.value for sample in mine}
    assert totals["count"] == len(lasted)
    assert totals["sum"] == pytest.approx(sum(lasted))


def test_active_requests_are_those_not_yet_ended() -> None:
    throttle = throttle_for_tests()
    permit = throttle.try_admit(Demand(Priority.HIGH))
    assert isinstance(permit, Permit)
    assert value(throttle, "active_requests", priority="high") == 1
    permit.settle()
    assert value(throttle, "active_requests", priority="high") == 0


@pytest.mark.parametrize(
    ("busy_pct", "tier", "factor", "high_rps"),
    [(80, "100", 1.0, 1000), (86, "70", 0.7, 700), (91, "40", 0.4, 400), (96, "0", 0.0, 0)],
)
def test_the_tier_in_force_is_the_state_that_is_1(
    busy_pct: float, tier: str, factor: float, high_rps: float
) -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = busy_pct
    throttle.tick(3)
    assert states(throttle, "tier") == {**dict.fromkeys(("100", "70", "40", "0"), 0.0), tier: 1.0}
    assert value(throttle, "factor_ratio") == factor
    assert value(throttle, "rate_limit", priority="high") == high_rps


def test_between_two_steps_the_last_one_reached_is_in_force() -> None:
    throttle = throttle_for_tests(tiers="80:0.5", tier_recovery_step=0.2)
    throttle.gpu.utilization_pct = 90.0
    throttle.tick(3)
    throttle.gpu.utilization_pct = 10.0
    throttle.tick()
    assert value(throttle, "factor_ratio") == 0.7
    assert states(throttle, "tier") == {"100": 0.0, "50": 1.0}


def test_failed_reads_are_counted() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.fail_with(OSError("driver"))
    throttle.tick(2)
    assert value(throttle, "controller_errors_total") == 2


def test_nothing_that_a_client_sends_becomes_a_label() -> None:
    throttle = throttle_for_tests(user_limit="1/minute")
    for _ in range(2):
        throttle.try_admit(Demand(user="alice", route="secret-route", address="192.0.2.7"))
    messages = [
        (sample.name, sample.labels) for family in scraped(throttle).values() for sample in family.samples
    ]
    assert not re.search(r"alice|secret|192", str(messages))


def test_a_scrape_does_not_wait_for_a_hung_gpu() -> None:
    gpu = FakeGpu(blocks=True)
    gpu.hang()
    throttle = Throttle(Settings(), gpu=gpu)
    answered = threading.Event()

    def scrape() -> None:
        scraped(throttle)
        answered.set()

    throttle.start()
    try:
        scraper = threading.Thread(target=scrape, daemon=True)
        scraper.start()
        assert answered.wait(60.0)
        assert gpu.is_hanging
    finally:
        gpu.recover()
        throttle.stop()


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == metrics_page(), (
        "run: python -m docs.generate.metrics > docs/metrics.md"
    )


def test_the_page_is_printed_by_the_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "docs.generate.metrics"], capture_output=True, check=True, text=True
    )
    assert done.stdout == metrics_page()


async def test_the_example_on_the_page_serves_metrics() -> None:
    code, _ = re.findall(r"^```python\n(.*?)^```$", metrics_page(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    transport = httpx.ASGITransport(names["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as scraper:
        answer = await scraper.get("/metrics", follow_redirects=True)
    assert PREFIX + "factor_ratio 1.0" in answer.text
    names["throttle"].stop()
