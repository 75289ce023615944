"""Effects of GPU verdicts through the whole throttle: readiness, rates, rejections, recovery."""

from typing import Any

import pytest

from autoglm_throttle import Outcome, Permit
from autoglm_throttle.gpu.host import HostLoad, HostSampler
from autoglm_throttle.testing import FakeGpu, ManualClock
from autoglm_throttle.types import ControlCause, GpuCondition
from tests.gpu.throttled_service import Service

STALLED_AFTER_S = 10
BUSY_PCT = 88.0
"""Above the first edge, so that the table alone would leave 0.7."""


def make_service(devices: int = 1, engines: int = 0, **settings: Any) -> tuple[Service, FakeGpu]:
    """Build a service that has worked for a while on devices of 700 W."""
    clock = ManualClock()
    gpu = FakeGpu(devices, engines=engines, clock=clock)
    gpu.utilization_pct, gpu.power_w, gpu.power_limit_w = 60.0, 450.0, 700.0
    service = Service(gpu, clock, **{"signal": "utilization", **settings})
    service.overload(30, rps=40, takes_s=0.5)
    return service, gpu


def hung(service: Service, gpu: FakeGpu, **reading: float) -> list[Permit]:
    """Simulate a collective that waits for a lost rank: 100 % at 70 W, without responses."""
    service.overload(1, rps=0)
    permits = service.hang(4)
    gpu.utilization_pct = BUSY_PCT
    gpu.power_w = 70.0
    for name, value in reading.items():
        setattr(gpu, name, value)
    return permits


def until_stalled(service: Service) -> int:
    for second in range(1, 40):
        service.tick()
        if service.findings[0] is GpuCondition.STALLED:
            return second
    raise AssertionError(f"never stalled: {service.verdicts}")


class TestStalled:
    def test_verdict_lists_its_evidence(self) -> None:
        service, gpu = make_service()
        hung(service, gpu)
        assert STALLED_AFTER_S <= until_stalled(service) <= STALLED_AFTER_S + 4
        evidence = service.verdict.evidence
        assert evidence["utilization_pct"] == BUSY_PCT
        assert evidence["power_share"] < 0.3
        assert evidence["progress_per_s"] == 0.0
        assert evidence["in_flight"] == 4
        assert service.verdict.confidence >= 0.8
        assert service.verdict.fake_busy

    def test_tiers_reject_all_with_reason(self) -> None:
        service, gpu = make_service()
        hung(service, gpu)
        until_stalled(service)
        snapshot = service.throttle.snapshot()
        assert (snapshot.control.factor, snapshot.control.cause, snapshot.ready) == (
            0.0,
            ControlCause.STALLED,
            False,
        )
        assert snapshot.control.tier == 0.7, "the table alone would not have"
        assert service.detail() == "gpu:stalled"

    @pytest.mark.parametrize("utilization_pct", [BUSY_PCT, 100.0])
    def test_adaptive_is_not_ready_and_rejects_nothing(self, utilization_pct: float) -> None:
        service, gpu = make_service(policy="adaptive")
        hung(service, gpu, utilization_pct=utilization_pct)
        until_stalled(service)
        assert not service.throttle.snapshot().ready
        service.rejected.clear()
        service.overload(3, rps=40, takes_s=60.0)
        assert not service.telemetry_rejections
        assert service.throttle.control_state().factor == 1.0

    @pytest.mark.parametrize("policy", ["tiers", "adaptive", "concurrency", "fixed"])
    def test_one_spinning_device_beside_idle_ones_is_not_ready(self, policy: str) -> None:
        """FIELD 13, NVIDIA/nccl#1550: one of eight spins, seven read 0 %, and nothing comes out."""
        service, gpu = make_service(devices=8, policy=policy)
        permits = hung(service, gpu, utilization_pct=0.0)
        gpu.set(0, utilization_pct=100.0)
        assert STALLED_AFTER_S <= until_stalled(service) <= STALLED_AFTER_S + 4
        assert service.findings[1:] == [GpuCondition.IDLE] * 7
        assert not service.throttle.snapshot().ready
        for permit in permits:
            permit.settle()
        service.tick(4)
        assert service.throttle.snapshot().ready, "something came out"

    def test_one_hung_device_beside_a_working_one_stays_ready(self) -> None:
        service, gpu = make_service(devices=2)
        hung(service, gpu)
        gpu.set(1, utilization_pct=60.0, power_w=450.0)
        until_stalled(service)
        assert service.findings == [GpuCondition.STALLED, GpuCondition.WORKING]
        assert service.throttle.snapshot().ready

    @pytest.mark.parametrize("policy", ["tiers", "adaptive"])
    def test_it_ends_when_something_comes_out(self, policy: str) -> None:
        service, gpu = make_service(policy=policy)
        permits = hung(service, gpu)
        until_stalled(service)
        for permit in permits:
            permit.settle()
        gpu.utilization_pct, gpu.power_w = 50.0, 400.0
        factors, ready = [], []
        for _ in range(8):
            factors.append(service.tick().factor)
            ready.append(service.throttle.snapshot().ready)
        assert ready == [False] * 2 + [True] * 6, "three new samples must agree"
        assert factors[-1] == 1.0
        if policy == "tiers":
            assert factors[:4] == [0.0] * 4, "and three more before the door opens"

    def test_it_ends_when_all_have_given_up(self) -> None:
        """Requests that are cancelled are no progress; with none in flight there is nothing to hang."""
        service, gpu = make_service()
        permits = hung(service, gpu)
        until_stalled(service)
        for permit in permits:
            permit.settle(Outcome.NEUTRAL)
        gpu.utilization_pct = 0.0
        service.tick(STALLED_AFTER_S - 2)
        assert service.findings == [GpuCondition.STALLED], "falling utilization is no recovery"
        service.tick(12)
        assert service.findings == [GpuCondition.IDLE]
        assert service.throttle.control_state().factor == 1.0
        assert service.throttle.snapshot().ready

    def test_one_of_two_that_hangs_takes_its_half(self) -> None:
        service, gpu = make_service(devices=2)
        hung(service, gpu, utilization_pct=80.0)
        gpu.set(0, utilization_pct=90.0)
        gpu.set(1, utilization_pct=80.0, power_w=400.0)
        until_stalled(service)
        service.tick(2)
        snapshot = service.throttle.snapshot()
        assert service.findings[1] is not GpuCondition.STALLED
        assert (snapshot.control.factor, snapshot.control.cause, snapshot.ready) == (
            0.5,
            ControlCause.STALLED,
            True,
        )

    def test_the_one_left_of_two_that_hangs_is_all_that_is_left(self) -> None:
        service, gpu = make_service(devices=2)
        hung(service, gpu)
        gpu.lose(1)
        until_stalled(service)
        assert not service.throttle.snapshot().ready
        assert service.findings == [GpuCondition.STALLED, GpuCondition.LOST]

    def test_a_slow_service_is_not_hung(self) -> None:
        """A response every two seconds counts as continuous progress."""
        service, gpu = make_service()
        permits = hung(service, gpu)
        for _ in range(20):
            service.tick(2)
            permits.pop(0).settle()
            permits += service.hang(1)
            assert service.findings != [GpuCondition.STALLED]

    def test_a_long_stream_is_not_hung(self) -> None:
        service, gpu = make_service()
        permits = hung(service, gpu)
        for _ in range(30):
            permits[0].record_chunk()
            service.tick()
            assert service.findings != [GpuCondition.STALLED]

    def test_silence_takes_readiness_back(self) -> None:
        """Missing telemetry must not keep a service unready for ever."""
        service, gpu = make_service()
        hung(service, gpu)
        until_stalled(service)
        gpu.hang()
        assert not service.throttle.snapshot().ready
        service.tick(4)
        assert service.throttle.snapshot().ready


class TestThrottled:
    def test_it_counts_by_its_clock(self) -> None:
        service, gpu = make_service()
        gpu.sm_clock_mhz = gpu.sm_clock_max_mhz = 1980.0
        gpu.utilization_pct = 86.0
        service.overload(10, rps=40, takes_s=0.5)
        gpu.throttle, gpu.sm_clock_mhz = frozenset({"hw_thermal"}), 990.0
        service.overload(10, rps=40, takes_s=0.5)
        assert service.findings == [GpuCondition.THROTTLED]
        view = service.throttle.snapshot().view
        assert view is not None
        assert view.capacity == pytest.approx(0.5)
        assert service.throttle.control_state().factor == pytest.approx(0.7 * 0.5)
        assert service.throttle.snapshot().ready

    def test_one_of_four_costs_its_share(self) -> None:
        service, gpu = make_service(devices=4)
        gpu.sm_clock_mhz = gpu.sm_clock_max_mhz = 2000.0
        gpu.set(1, utilization_pct=95.0)
        service.overload(10, rps=40, takes_s=0.5)
        gpu.set(1, throttle=frozenset({"hw_slowdown"}), sm_clock_mhz=1000.0)
        service.overload(10, rps=40, takes_s=0.5)
        assert service.throttle.control_state().factor == pytest.approx(1.0 - 0.25 * 0.5)

    def test_cool_again_it_counts_whole(self) -> None:
        service, gpu = make_service()
        gpu.sm_clock_mhz = gpu.sm_clock_max_mhz = 2000.0
        gpu.utilization_pct = 84.9
        service.overload(10, rps=40, takes_s=0.5)
        gpu.utilization_pct = 85.0
        gpu.throttle, gpu.sm_clock_mhz = frozenset({"sw_thermal"}), 1000.0
        service.overload(6, rps=40, takes_s=0.5)
        assert service.throttle.control_state().factor == pytest.approx(0.5)
        gpu.throttle, gpu.sm_clock_mhz = frozenset(), 2000.0
        service.overload(6, rps=40, takes_s=0.5)
        assert service.throttle.control_state().factor == 1.0


class TestUnderfed:
    def test_adaptive_rejects_nothing_though_limiter_confirms(self) -> None:
        budgets, rejected = {}, {}
        for watts in (200.0, 650.0):
            service, gpu = make_service(policy="adaptive", inflight_start=8, inflight_max=8, slo_s=5.0)
            gpu.utilization_pct, gpu.power_w = 100.0, watts
            service.overload(10, rps=14, takes_s=0.5)
            service.reasons.clear()
            service.overload(20, rps=40, takes_s=0.5)
            rejected[watts] = service.telemetry_rejections
            budgets[watts] = service.throttle.control_state().budget_rps
        assert (rejected[200.0], budgets[200.0]) == (0, None), "more at once would help"
        assert budgets[650.0] is not None, "the same crowd at a card that is full"

    def test_tiers_stay_literal(self) -> None:
        service, gpu = make_service()
        gpu.utilization_pct, gpu.power_w = BUSY_PCT, 200.0
        service.overload(10, rps=40, takes_s=0.5)
        assert service.findings == [GpuCondition.UNDERFED]
        assert service.throttle.control_state().factor == 0.7
        assert service.throttle.control_state().cause is ControlCause.TIER


class TestDegraded:
    def test_it_leaves_seven_tenths(self) -> None:
        """A third of the tokens at the same load and the same power."""
        clock = ManualClock()
        gpu = FakeGpu(1, engines=1, clock=clock)
        gpu.utilization_pct, gpu.power_w, gpu.power_limit_w = 95.0, 320.0, 700.0
        gpu.running, gpu.kv_used_ratio, gpu.tokens_total = 16, 0.3, 0
        service = Service(gpu, clock)
        permits = service.hang(16)

        def serve(tokens: int, seconds: int) -> None:
            for _ in range(seconds):
                assert gpu.tokens_total is not None
                gpu.tokens_total += tokens
                service.tick()

        serve(2180, 90)
        assert service.findings == [GpuCondition.PRODUCTIVE]
        assert service.throttle.control_state().factor == 1.0
        serve(730, 30)
        assert service.findings == [GpuCondition.DEGRADED]
        control_state = service.throttle.control_state()
        assert (control_state.factor, control_state.cause) == (0.7, ControlCause.DEGRADED)
        assert service.throttle.snapshot().ready
        serve(2180, 30)
        assert service.throttle.control_state().factor == 1.0
        for permit in permits:
            permit.settle()


class TestStarved:
    def test_queued_work_with_unfilled_device_is_found(self) -> None:
        service, gpu = make_service(policy="adaptive", inflight_start=4, inflight_max=4)
        gpu.utilization_pct = 30.0
        service.overload(15, rps=20, takes_s=0.5)
        assert service.findings == [GpuCondition.STARVED]
        assert not service.telemetry_rejections
        assert service.throttle.control_state().factor == 1.0

    @pytest.mark.parametrize(
        ("load", "agree"), [(HostLoad(), 3), (HostLoad(0.9, 0.3), 5), (HostLoad(0.1, 0.0, 0.3, 0.9), 5)]
    )
    def test_load_of_the_host_is_its_evidence(
        self, load: HostLoad, agree: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(HostSampler, "read", lambda _: load)
        service, gpu = make_service(policy="adaptive", inflight_start=4, inflight_max=4)
        gpu.utilization_pct = 30.0
        service.overload(15, rps=20, takes_s=0.5)
        assert service.findings == [GpuCondition.STARVED]
        found = {name: value for name, value in service.verdict.evidence.items() if name.startswith("host_")}
        assert found == {f"host_{name}": value for name, value in load._asdict().items() if value is not None}
        assert service.verdict.confidence == pytest.approx(agree / 7)

    def test_filled_device_is_not_found(self) -> None:
        service, gpu = make_service(policy="adaptive", inflight_start=4, inflight_max=4)
        gpu.utilization_pct = 80.0
        service.overload(15, rps=20, takes_s=0.5)
        assert service.findings == [GpuCondition.WORKING]
