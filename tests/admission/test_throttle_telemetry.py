"""Telemetry of the throttle: tiers, failures, the sampler thread and a fork."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from itertools import pairwise
from typing import Any

import pytest

from autoglm_throttle import (
    Priority,
    ProviderMisconfigured,
    ProviderUnavailable,
    Reason,
    Settings,
    TelemetryState,
    Throttle,
)
from autoglm_throttle.testing import FakeGpu, ManualClock, throttle_for_tests
from autoglm_throttle.types import Clock, ControlCause, Policy
from tests.admission.demands import DEADLINE_S, admitted, decided, overheated, permit_of, run_threads


class TestTiers:
    """The literal table through a fake GPU: strictly above an edge, at the third sample."""

    @pytest.mark.parametrize(
        ("utilization_pct", "rates"),
        [
            (0.0, (1000, 500, 100)),
            (85.0, (1000, 500, 100)),
            (85.1, (700, 350, 70)),
            (90.0, (700, 350, 70)),
            (90.1, (400, 200, 40)),
            (95.0, (400, 200, 40)),
            (95.1, (0, 0, 0)),
            (100.0, (0, 0, 0)),
        ],
    )
    def test_each_band_leaves_its_share(self, utilization_pct: float, rates: tuple[float, ...]) -> None:
        throttle = overheated(throttle_for_tests(), utilization_pct, samples=2)
        assert tuple(throttle.snapshot().rate_limit_rps.values()) == (1000, 500, 100)
        throttle.tick()
        assert tuple(throttle.snapshot().rate_limit_rps.values()) == pytest.approx(rates)

    def test_a_calm_sample_starts_the_count_anew(self) -> None:
        throttle = throttle_for_tests()
        for utilization_pct in (99, 99, 85, 99, 99):
            overheated(throttle, utilization_pct, samples=1)
            assert throttle.control_state().factor == 1.0
        assert overheated(throttle, 99, samples=1).control_state().factor == 0.0

    def test_the_cut_bucket_admits_burst_and_the_cut_rate(self) -> None:
        throttle = overheated(throttle_for_tests(), 92.0)
        assert admitted(throttle, 200, Priority.LOW) == 100
        throttle.clock.advance(1.0)
        assert admitted(throttle, 200, Priority.LOW) == 40

    def test_factor_0_names_the_next_sample(self) -> None:
        throttle = overheated(throttle_for_tests(sample_interval_s=2.0), 96.0)
        rejection = decided(throttle, Priority.HIGH)
        assert (rejection.reason, rejection.detail, rejection.retry_after_s) == (
            Reason.GPU,
            "gpu:overload",
            2.0,
        )
        throttle.clock.advance(0.5)
        assert decided(throttle).retry_after_s == 1.5

    def test_first_calm_sample_admits_again(self) -> None:
        throttle = overheated(throttle_for_tests(), 96.0)
        assert admitted(throttle, 10) == 0
        assert admitted(overheated(throttle, 50.0, samples=1), 10) == 10

    def test_without_a_source_the_rates_are_nominal(self) -> None:
        throttle = Throttle(Settings(gpu="none"), clock=ManualClock())
        assert (throttle.control_state().telemetry, throttle.control_state().cause) == (
            TelemetryState.NONE,
            ControlCause.NO_DEVICE,
        )
        assert throttle.control_state().factor == 1.0
        assert throttle.snapshot().ready

    def test_the_policy_fixed_does_not_look(self) -> None:
        throttle = overheated(throttle_for_tests(policy="fixed"), 100.0, samples=5)
        assert throttle.snapshot().policy is Policy.FIXED
        assert admitted(throttle, 10) == 10

    def test_workers_share_the_rates_and_not_the_user_limits(self) -> None:
        throttle = throttle_for_tests(workers=4, user_limit="3/minute")
        assert tuple(throttle.snapshot().rate_limit_rps.values()) == (250.0, 125.0, 25.0)
        assert admitted(throttle, 10, user="u") == 3

    def test_repr_shows_the_control_state(self) -> None:
        throttle = overheated(throttle_for_tests(), 92.0)
        permit_of(throttle)
        assert repr(throttle) == (
            "Throttle(tiers, factor=0.40 (tier), telemetry=fresh, rates=400/200/40/s, active=1)"
        )


class TestFailures:
    """GPUs that hang, fail and are lost."""

    def test_hang_goes_through_the_telemetry_states_by_age(self) -> None:
        throttle = overheated(throttle_for_tests(gpu_unknown="open"), 92.0)
        throttle.gpu.hang()
        observed_s = throttle.clock()
        for age_s, state in (
            (2.0, TelemetryState.FRESH),
            (2.001, TelemetryState.LATE),
            (3.0, TelemetryState.LATE),
            (3.001, TelemetryState.STALE),
            (30.0, TelemetryState.STALE),
            (30.001, TelemetryState.BLIND),
        ):
            throttle.clock.advance(observed_s + age_s - throttle.clock())
            assert throttle.control_state().telemetry is state
        assert throttle.control_state().factor == 1.0

    def test_the_cut_is_held_and_then_let_go_slowly(self) -> None:
        throttle = overheated(throttle_for_tests(gpu_unknown="open"), 92.0)
        throttle.gpu.hang()
        factors = [throttle.tick().factor for _ in range(40)]
        assert factors[:3] == [0.4, 0.4, 0.4]
        assert factors == sorted(factors)
        assert max(b - a for a, b in pairwise(factors)) < 0.03
        assert factors[-1] == 1.0

    @pytest.mark.parametrize(
        ("unknown", "factor"), [("open", 1.0), ("last", 0.4), ("conservative", 0.7), ("closed", 0.0)]
    )
    def test_what_is_assumed_of_a_silent_gpu_is_a_setting(self, unknown: Any, factor: float) -> None:
        throttle = overheated(throttle_for_tests(gpu_unknown=unknown), 92.0)
        throttle.gpu.fail_with(ProviderUnavailable("gone"))
        assert throttle.tick(40).factor == pytest.approx(factor)
        assert throttle.control_state().telemetry is TelemetryState.BLIND
        assert throttle.snapshot().controller_errors == 40

    def test_a_broken_configuration_is_blindness_at_once(self) -> None:
        throttle = overheated(throttle_for_tests(), 92.0)
        throttle.gpu.fail_with(ProviderMisconfigured("no such device"))
        assert throttle.tick().telemetry is TelemetryState.BLIND

    def test_a_lost_device_lowers_the_capacity_and_is_not_idle(self) -> None:
        throttle = throttle_for_tests(gpu=FakeGpu(devices=4, clock=(clock := ManualClock())), clock=clock)
        throttle.gpu.utilization_pct = 80.0
        throttle.tick()
        throttle.gpu.lose(2)
        assert throttle.tick().factor == 0.75
        assert throttle.snapshot().ready

    def test_without_any_device_left_the_service_is_not_ready(self) -> None:
        throttle = throttle_for_tests()
        throttle.tick()
        throttle.gpu.lose()
        assert throttle.tick().cause is ControlCause.LOST
        assert decided(throttle).detail == "gpu:lost"
        assert not throttle.snapshot().ready
        throttle.gpu.recover()
        throttle.tick(2)
        assert decided(throttle).detail == "gpu:lost"
        throttle.tick()
        assert throttle.snapshot().ready
        assert decided(throttle).allowed

    def test_recovery_is_trusted_after_three_samples(self) -> None:
        throttle = overheated(throttle_for_tests(gpu_unknown="last"), 96.0)
        throttle.gpu.hang()
        throttle.tick(10)
        throttle.gpu.recover()
        throttle.gpu.utilization_pct = 10.0
        assert [throttle.tick().factor for _ in range(3)] == [0.0, 0.0, 1.0]

    def test_rows_with_an_old_time_are_no_new_sample(self) -> None:
        throttle = overheated(throttle_for_tests(), 50.0, samples=1)
        throttle.gpu.stale()
        throttle.tick(10)
        assert throttle.control_state().telemetry is TelemetryState.STALE

    def test_one_hot_reading_shown_three_times_is_one_strike(self) -> None:
        throttle = overheated(throttle_for_tests(), 99.0, samples=1)
        throttle.gpu.stale()
        throttle.tick(2)
        assert throttle.control_state().factor == 1.0

    def test_rows_that_are_no_samples_change_nothing(self) -> None:
        class Broken(FakeGpu):
            def read(self) -> Any:
                return [None, "garbage"]

        throttle = throttle_for_tests(gpu=Broken())
        throttle.tick(3)
        assert throttle.snapshot().controller_errors == 3
        assert admitted(throttle, 5) == 5

    def test_what_observing_raises_does_not_end_the_sampling(self) -> None:
        def fail() -> None:
            raise RuntimeError("no")

        throttle = throttle_for_tests()
        throttle.control.after_sample = fail
        overheated(throttle, 92.0)
        assert throttle.snapshot().controller_errors == 3
        assert admitted(throttle, 5) == 5
        throttle.control.after_sample = None
        assert throttle.tick(3).factor == 0.4


class Watched(FakeGpu):
    """A fake GPU that blocks its reader and signals each read."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(blocks=True, clock=clock)
        self.started_check = threading.Semaphore(0)
        self.readers: set[int] = set()

    def read(self) -> Any:
        self.readers.add(threading.get_ident())
        self.started_check.release()
        return super().read()


class Observed(Throttle):
    """A throttle that signals each observed sample."""

    def __init__(self, settings: Settings, *, gpu: FakeGpu, clock: ManualClock) -> None:
        super().__init__(settings, gpu=gpu, clock=clock)
        self.observed = threading.Event()
        self.control.after_sample = self.observed.set


class TestThread:
    """The sampler thread: it never blocks requests, exists once, and ends with the throttle."""

    def test_hung_read_does_not_delay_requests_and_shows_its_age(self) -> None:
        clock = ManualClock()
        gpu = Watched(clock)
        throttle = Observed(Settings(policy="tiers"), gpu=gpu, clock=clock)
        try:
            throttle.start()
            assert throttle.observed.wait(DEADLINE_S)
            assert throttle.control_state().telemetry is TelemetryState.FRESH
            gpu.hang()
            assert gpu.started_check.acquire(timeout=DEADLINE_S)
            throttle.control.monitor.samplers[gpu.name].wake()
            assert gpu.started_check.acquire(timeout=DEADLINE_S)
            clock.advance(3.001)
            states: list[TelemetryState] = []
            run_threads(
                8, lambda _: states.extend([throttle.control_state().telemetry] * admitted(throttle, 20))
            )
            assert states == [TelemetryState.STALE] * 160
            assert len(gpu.readers) == 1
        finally:
            gpu.recover()
            throttle.stop()

    def test_starts_at_the_first_request_and_again_after_a_stop(self) -> None:
        gpu = Watched()
        throttle = Throttle(Settings(), gpu=gpu)
        assert not gpu.readers
        try:
            decided(throttle)
            assert gpu.started_check.acquire(timeout=DEADLINE_S)
            throttle.stop()
            throttle.stop()
            decided(throttle)
            assert gpu.started_check.acquire(timeout=DEADLINE_S)
        finally:
            throttle.stop()

    def test_goes_when_its_throttle_goes(self) -> None:
        gpu = Watched()
        throttle = Throttle(Settings(), gpu=gpu)
        throttle.start()
        assert gpu.started_check.acquire(timeout=DEADLINE_S)
        (reader,) = (thread for thread in threading.enumerate() if thread.ident in gpu.readers)
        gone = weakref.ref(throttle)
        del throttle
        for _ in range(1000):  # the thread may hold it for the moment in which it hands the rows on
            gc.collect()
            if gone() is None:
                break
        assert gone() is None
        reader.join(DEADLINE_S)
        assert not reader.is_alive()

    def test_a_throttle_whose_read_hangs_can_go_too(self) -> None:
        gpu = Watched()
        gpu.hang()
        throttle = Throttle(Settings(), gpu=gpu)
        throttle.start()
        assert gpu.started_check.acquire(timeout=DEADLINE_S)
        gone = weakref.ref(throttle)
        del throttle
        gc.collect()
        assert gone() is None
        gpu.recover()


FORK = """
import os, signal, threading
from autoglm_throttle import Demand, Outcome, Priority, Settings, Throttle
from autoglm_throttle.testing import FakeGpu

class Watched(FakeGpu):
    def __init__(self):
        super().__init__()
        self.read_here = threading.Event()
    def read(self):
        self.read_here.set()
        return super().read()
    def reset_after_fork(self):
        super().reset_after_fork()
        self.read_here = threading.Event()

signal.alarm(120)
gpu = Watched()
throttle = Throttle(Settings(user_limit="3/minute"), gpu=gpu)
inherited = [throttle.try_admit(Demand(user="u")) for _ in range(2)]
assert gpu.read_here.wait(10)
held, fork = threading.Event(), threading.Event()

def hold():
    with throttle.admission.parts.settlement.lock:
        held.set()
        fork.wait(10)

threading.Thread(target=hold, daemon=True).start()
assert held.wait(10)
child = os.fork()
if child == 0:
    signal.alarm(120)
    snapshot = throttle.snapshot()
    assert not any(snapshot.requests.values()), snapshot.requests
    assert not any(snapshot.active.values())
    for permit in inherited:
        permit.settle()
    assert not any(throttle.snapshot().active.values()), throttle.snapshot().active
    assert [throttle.try_admit(Demand(user="u")).admitted for _ in range(4)] == [True] * 3 + [False]
    assert gpu.read_here.wait(10)
    assert sum(throttle.snapshot().requests.values()) == 4
    os._exit(0)
fork.set()
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
snapshot = throttle.snapshot()
assert snapshot.active[Priority.MID] == 2
for permit in inherited:
    permit.settle()
assert throttle.snapshot().outcomes[Priority.MID, Outcome.SUCCESS] == 2
throttle.stop()
print("both lived")
"""


def test_a_forked_child_has_its_own_lock_counts_and_sampler() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, check=False
    )
    assert done.stdout == "both lived\n", done.stderr


class TestReady:
    """Readiness under every policy: at least one GPU must not hang, by its last valid telemetry."""

    @pytest.mark.parametrize("policy", list(Policy))
    @pytest.mark.parametrize("unknown", ["open", "last", "closed"])
    def test_a_loss_counts_until_the_source_falls_silent(self, policy: Policy, unknown: Any) -> None:
        throttle = throttle_for_tests(policy=policy, gpu_unknown=unknown)
        throttle.tick()
        assert throttle.snapshot().ready
        throttle.gpu.lose()
        for _ in range(60):
            throttle.tick()
            assert not throttle.snapshot().ready, "the source goes on saying so"
        throttle.gpu.hang()
        throttle.tick(3)
        assert not throttle.snapshot().ready
        throttle.tick()
        assert throttle.snapshot().ready, "a dead source takes no service off the net"

    @pytest.mark.parametrize("policy", list(Policy))
    def test_loss_ends_with_the_first_device_that_recovers(self, policy: Policy) -> None:
        throttle = throttle_for_tests(policy=policy)
        throttle.gpu.lose()
        throttle.tick()
        throttle.gpu.recover()
        throttle.tick()
        assert throttle.snapshot().ready

    @pytest.mark.parametrize("policy", list(Policy))
    @pytest.mark.parametrize(
        "signal", ["auto", "utilization", pytest.param("pressure", marks=pytest.mark.slow)]
    )
    def test_a_hang_counts_until_its_measurement_is_stale(self, policy: Policy, signal: Any) -> None:
        gpu = FakeGpu(clock=(clock := ManualClock()))
        throttle = throttle_for_tests(policy=policy, signal=signal, gpu=gpu, clock=clock)
        gpu.utilization_pct, gpu.power_w, gpu.power_limit_w = 88.0, 450.0, 700.0
        permit_of(throttle).settle()
        throttle.tick(5)
        permit_of(throttle)
        gpu.power_w = 70.0
        throttle.tick(620)
        assert not throttle.snapshot().ready
        gpu.hang()
        throttle.tick(3)
        assert not throttle.snapshot().ready
        throttle.tick()
        assert throttle.snapshot().ready
