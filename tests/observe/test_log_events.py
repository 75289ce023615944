"""Which changes are log lines, and how few of them an attack makes."""

import logging
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle import Demand, Permit, Priority, Rejection, Settings, Throttle
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, throttle_for_tests
from autoglm_throttle.types import Reason
from tests.admission.event_queues import event_queue, record
from tests.gpu.throttled_service import Named, Service

USER = "07f3a9c2d4e5b617"

RECORD_KEYS = frozenset(logging.makeLogRecord({}).__dict__)


@pytest.fixture(autouse=True)
def _listens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "autoglm_throttle")


def keys(records: Sequence[logging.LogRecord], event: str) -> list[dict[str, object]]:
    """What stands in the lines of one event, with their levels."""
    return [
        {"level": record.levelname, **{k: v for k, v in record.__dict__.items() if k not in RECORD_KEYS}}
        for record in records
        if getattr(record, "event", None) == event
    ]


def busy(throttle: ManualThrottle, utilization_pct: float, samples: int) -> None:
    throttle.gpu.utilization_pct = utilization_pct
    throttle.tick(samples)


def test_each_change_of_tier_is_one_event(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests()
    for utilization_pct, samples in ((80, 2), (86, 5), (91, 3), (96, 3), (70, 4)):
        busy(throttle, utilization_pct, samples)
    lines = keys(caplog.records, "tier_changed")
    assert [(line["factor_before"], line["factor"], line["cause"], line["level"]) for line in lines] == [
        (1.0, 0.7, "tier", "WARNING"),
        (0.7, 0.4, "tier", "WARNING"),
        (0.4, 0.0, "tier", "WARNING"),
        (0.0, 1.0, "released", "INFO"),
    ]
    assert [line["gpu_utilization_ratio"] for line in lines] == [0.86, 0.91, 0.96, 0.7]


def test_last_device_lost_is_one_tier_event(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests()
    throttle.tick()
    throttle.gpu.lose()
    throttle.tick(5)
    (line,) = keys(caplog.records, "tier_changed")
    assert (line["factor"], line["cause"], line["level"]) == (0.0, "lost", "WARNING")


def test_each_telemetry_state_is_one_event(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests()
    throttle.tick()
    throttle.gpu.hang()
    throttle.tick(60)
    throttle.gpu.recover()
    throttle.tick(5)
    lines = keys(caplog.records, "telemetry_changed")
    assert [(line["state_before"], line["state"], line["level"]) for line in lines] == [
        ("starting", "fresh", "INFO"),
        ("fresh", "late", "INFO"),
        ("late", "stale", "WARNING"),
        ("stale", "blind", "WARNING"),
        ("blind", "fresh", "INFO"),
    ]
    assert [line["provider"] for line in lines] == ["fake"] * 5
    assert [line["age_s"] for line in lines] == [0.0, 3.0, 4.0, 31.0, 0.0]


# FIELD section 3
@pytest.mark.parametrize(("gpu", "level"), [("none", "INFO"), ("auto", "WARNING")])
def test_missing_gpu_is_a_warning_unless_asked_for(
    gpu: str, level: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autoglm_throttle.gpu.select.providers", lambda *_, **__: [])
    with caplog.at_level("INFO", "autoglm_throttle"):
        Throttle(Settings(gpu=gpu)).try_admit(Demand())
    (line,) = keys(caplog.records, "telemetry_changed")
    assert (line["message"], line["level"]) == ("no GPU telemetry: the rates stay nominal", level)


def test_all_devices_lost_event_has_no_load_and_no_age(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests()
    throttle.tick()
    throttle.gpu.lose()
    throttle.tick(40)
    *_, blind = keys(caplog.records, "telemetry_changed")
    assert (blind["state"], blind["provider"], blind["age_s"]) == ("blind", "fake", None)
    text = "GPU telemetry is stale (fake, every GPU is lost, so the load is unknown)"
    assert text in [record.getMessage() for record in caplog.records]


def test_each_change_of_signal_is_one_event(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    engine, device = Named("vllm:a", clock, devices=0, engines=1), Named("nvml", clock)
    service = Service((engine, device), clock)
    service.tick(5)
    assert not keys(caplog.records, "signal_changed"), "the first signal replaces none"
    engine.fail_with(OSError("gone"))
    service.tick(40)
    engine.recover()
    service.tick(20)
    lines = keys(caplog.records, "signal_changed")
    assert [(line["level"], line["signal"], line["provider"]) for line in lines] == [
        ("WARNING", "utilization", "nvml"),
        ("INFO", "pressure", "vllm:a"),
    ]
    text = "the load signal is utilization now (nvml), no longer pressure"
    assert text in [record.getMessage() for record in caplog.records]


def test_stalled_device_is_one_event_with_evidence(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests(policy="concurrency")
    throttle.gpu.utilization_pct, throttle.gpu.power_w, throttle.gpu.power_limit_w = 80.0, 450.0, 700.0
    throttle.tick()
    answered = throttle.try_admit(Demand(Priority.HIGH))
    assert isinstance(answered, Permit)
    throttle.tick()
    answered.settle()
    throttle.tick()
    throttle.gpu.utilization_pct, throttle.gpu.power_w = 100.0, 70.0
    permit = throttle.try_admit(Demand(Priority.HIGH))
    assert isinstance(permit, Permit)
    throttle.tick(60)
    (stalled,) = keys(caplog.records, "gpu_verdict")
    assert (stalled["level"], stalled["device"], stalled["verdict"]) == ("ERROR", "FAKE-0", "stalled")
    assert isinstance(stalled["evidence"], dict)
    assert stalled["evidence"].items() >= {"power_share": 0.1, "progress_per_s": 0.0, "in_flight": 1}.items()
    permit.settle()
    throttle.gpu.utilization_pct = 0.0
    throttle.tick(30)
    _, over = keys(caplog.records, "gpu_verdict")
    assert (over["level"], over["verdict_before"], over["verdict"]) == ("INFO", "stalled", "idle")


def test_lost_and_recovered_device_is_two_events(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    throttle = throttle_for_tests(clock=clock, gpu=FakeGpu(devices=2, clock=clock))
    throttle.tick(5)
    throttle.gpu.lose(1)
    throttle.tick(20)
    throttle.gpu.recover()
    throttle.tick(20)
    events = [
        (record.levelname, record.getMessage()) for record in caplog.records if "FAKE" in record.getMessage()
    ]
    assert events == [
        ("ERROR", "FAKE-1 is lost: 1 of 2 usable"),
        ("INFO", "FAKE-1 is recovered: 2 of 2 usable"),
    ]


def reject_many(throttle: ManualThrottle, times: int, over_s: float, user: str = USER) -> None:
    for _ in range(times):
        assert isinstance(throttle.try_admit(Demand(Priority.LOW, user)), Rejection)
        throttle.clock.advance(over_s / times)


def test_many_rejections_are_few_events_and_all_counted(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests(user_limit="1/day")
    assert isinstance(throttle.try_admit(Demand(Priority.LOW, USER)), Permit)
    reject_many(throttle, 10_000, over_s=10.0)
    assert len(keys(caplog.records, "request_rejected")) == 1
    throttle.clock.advance(0.001)
    reject_many(throttle, 1, over_s=1.0)
    first, second = keys(caplog.records, "request_rejected")
    assert first["count"] == 1
    assert second["count"] == 10_000
    assert (
        first.items()
        >= {
            "priority": "low",
            "decision": "limited",
            "reason": "user",
            "detail": "user:user-86400s",
            "client_hash": USER,
            "level": "INFO",
        }.items()
    )
    assert isinstance(first["retry_after_s"], float)


def test_last_rejections_are_logged_without_another(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests(user_limit="1/day")
    throttle.try_admit(Demand(Priority.LOW, USER))
    reject_many(throttle, 100, over_s=1.0)
    throttle.tick(20)
    assert [line["count"] for line in keys(caplog.records, "request_rejected")] == [1, 99]


def test_the_interval_is_a_setting(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests(user_limit="1/day", log_refused_every_s=1.0)
    throttle.try_admit(Demand(Priority.LOW, USER))
    reject_many(throttle, 40, over_s=10.0)
    assert [line["count"] for line in keys(caplog.records, "request_rejected")] == [1, *[4] * 9]


def test_each_reason_has_its_own_events(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests(user_limit="1/day")
    throttle.try_admit(Demand(Priority.LOW, USER))
    reject_many(throttle, 2, over_s=0.1)
    busy(throttle, 96.0, 3)
    reject_many(throttle, 2, over_s=0.1)
    throttle.try_admit(Demand(Priority.LOW, cost=1e6))
    lines = keys(caplog.records, "request_rejected")
    assert [(line["reason"], line["decision"], line["count"]) for line in lines] == [
        ("user", "limited", 1),
        ("gpu", "shed", 1),
    ]


@given(
    st.floats(0.1, 100.0),
    st.lists(st.tuples(st.sampled_from([Reason.USER, Reason.GPU]), st.floats(0.0, 50.0)), max_size=50),
)
def test_nothing_is_counted_twice_or_lost(every_s: float, rejections: list[tuple[Reason, float]]) -> None:
    queue = event_queue(every_s)
    now, lines = 0.0, []
    report = dict.fromkeys(Reason, 0)
    happened = dict.fromkeys(Reason, 0)
    for reason, after_s in rejections:
        now += after_s
        happened[reason] += 1
        count = record(queue, reason, now)
        if count:
            report[reason] += count
            lines.append((reason, now))
            assert report[reason] == happened[reason]
        assert report[reason] <= happened[reason]
    for reason in Reason:
        times = [at for whose, at in lines if whose is reason]
        assert all(later - before >= every_s * (1 - 1e-12) for before, later in pairwise(times))


@pytest.mark.parametrize("handler_raises", [True, False])
def test_a_slow_or_broken_handler_does_not_hold_the_lock(handler_raises: bool) -> None:
    throttle = throttle_for_tests(user_limit="1/day")
    seen: list[int] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(len(throttle.snapshot().requests))
            if handler_raises:
                self.handleError(record)

        def handleError(self, record: logging.LogRecord) -> None: ...

    handler = Handler()
    logger = logging.getLogger("autoglm_throttle")
    logger.addHandler(handler)
    try:
        throttle.try_admit(Demand(user=USER))
        throttle.try_admit(Demand(user=USER))
    finally:
        logger.removeHandler(handler)
    assert seen


def test_a_demand_built_by_hand_is_logged_by_its_hash(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests(user_limit="1/day")
    for _ in range(2):
        throttle.try_admit(Demand(user="alice@example.com"))
    (line,) = keys(caplog.records, "request_rejected")
    assert len(str(line["client_hash"])) == 16
    assert "alice" not in caplog.text


def test_configuration_is_logged_once_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    throttle = throttle_for_tests(user_limit="1/day", key_secret="a secret of some length")
    for _ in range(3):
        throttle.start()
        throttle.stop()
    (line,) = keys(caplog.records, "config")
    (messages,) = [record.getMessage() for record in caplog.records if "in force" in record.getMessage()]
    assert messages.startswith("the limits in force: policy=")
    assert "rate_low_rps=100, user_limit=1/day" in messages
    assert "a secret" not in messages
    settings = line["settings"]
    assert isinstance(settings, dict)
    assert (settings["user_limit"], settings["key_secret"]) == ("1/day", "********")
