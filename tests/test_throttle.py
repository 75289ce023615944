"""The throttle end to end, in process: order, refunds, settling, concurrency, GPUs that fail."""

import asyncio
import contextlib
import gc
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle import (
    Decision,
    Demand,
    GpuSample,
    Outcome,
    Permit,
    Policy,
    Priority,
    ProviderMisconfigured,
    ProviderUnavailable,
    Reason,
    Regime,
    Rejection,
    Settings,
    Snapshot,
    Telemetry,
    Throttle,
    ThrottleMiddleware,
    Why,
)
from autoglm_throttle.asgi import middleware
from autoglm_throttle.testing import FakeGpu, ManualClock, ManualThrottle, throttle_for_tests

DEADLINE_S = 10.0
"""For what a thread does at once; only a fault waits so long."""


def decided(
    throttle: Throttle, priority: Priority = Priority.MID, user: str = "", cost: float = 1.0
) -> Decision:
    return throttle.try_admit(Demand(priority, user, cost)).decision


def admitted(throttle: Throttle, times: int, priority: Priority = Priority.MID, user: str = "") -> int:
    return sum(decided(throttle, priority, user).allowed for _ in range(times))


def heated(throttle: ManualThrottle, utilization_pct: float, samples: int = 3) -> ManualThrottle:
    throttle.gpu.utilization_pct = utilization_pct
    throttle.tick(samples)
    return throttle


class TestOrder:
    """The cheapest refusal comes first, and a refused request has taken nothing."""

    def test_the_shut_door_answers_before_rate_and_user(self) -> None:
        throttle = heated(throttle_for_tests(rate_low_rps="1/s", user_limit="1/minute"), 96.0)
        assert decided(throttle, Priority.LOW, "u", cost=50.0).detail == "gpu:stop"

    def test_the_rate_answers_before_the_user(self) -> None:
        throttle = throttle_for_tests(rate_low_rps="1/s", user_limit="1/minute")
        assert decided(throttle, Priority.LOW, "u").allowed
        assert decided(throttle, Priority.LOW, "u").detail == "rate:low"
        throttle.clock.advance(1.0)
        assert decided(throttle, Priority.LOW, "u").detail == "user:user-60s"

    def test_a_user_refusal_gives_the_token_back(self) -> None:
        throttle = throttle_for_tests(user_limit="1/minute")
        assert decided(throttle, user="u").allowed
        before = throttle.snapshot().tokens
        for cost in (1.0, 2.0, 300.0):
            assert not decided(throttle, user="u", cost=cost).allowed
        assert throttle.snapshot().tokens == before

    def test_a_borrowed_token_goes_back_to_its_lender(self) -> None:
        throttle = throttle_for_tests(borrow="any", rate_high_rps="1/s", user_limit="1/minute")
        assert decided(throttle, Priority.HIGH, "a").allowed
        assert decided(throttle, Priority.HIGH, "b").allowed
        before = throttle.snapshot().tokens
        assert before == {Priority.HIGH: 0.0, Priority.MID: 500.0, Priority.LOW: 99.0}
        assert not decided(throttle, Priority.HIGH, "b").allowed
        assert throttle.snapshot().tokens == before

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(Priority),
                st.sampled_from("ab"),
                st.sampled_from([0.5, 1.0, 2.5, 100.0]),
                st.floats(0.0, 20.0),
            ),
            max_size=40,
        )
    )
    def test_refused_requests_change_nothing_for_the_others(
        self, demands: list[tuple[Priority, str, float, float]]
    ) -> None:
        """A twin that sees only what the first one admitted ends in the same state."""
        limits: dict[str, Any] = {
            "user_limit": "6/minute;3/second",
            "rate_low_rps": "2/s",
            "rate_mid_rps": "3/s",
        }
        first, twin = throttle_for_tests(**limits), throttle_for_tests(**limits)
        for priority, user, cost, after_s in demands:
            for throttle in (first, twin):
                throttle.clock.advance(after_s)
            answer = decided(first, priority, user, cost)
            if answer.allowed:
                assert decided(twin, priority, user, cost) == answer
        assert first.snapshot().tokens == pytest.approx(twin.snapshot().tokens)
        for user in "ab":
            assert decided(first, Priority.HIGH, user) == decided(twin, Priority.HIGH, user)

    @pytest.mark.parametrize(
        "settings", [{"user_limit": "3/minute"}, {"rate_mid_rps": "0.05/s"}, {"tiers": "1:0"}]
    )
    def test_refused_at_every_instant_before_the_wait_and_admitted_at_it(
        self, settings: dict[str, Any]
    ) -> None:
        throttle = heated(throttle_for_tests(**settings), 50.0)
        while (refusal := decided(throttle, user="u")).allowed:
            throttle.clock.advance(0.7)
        wait = refusal.retry_after_s
        assert 0.0 < wait < math.inf
        ready = throttle.clock() + wait
        throttle.gpu.utilization_pct = 0.0
        throttle.clock.advance(math.nextafter(ready, 0.0) - throttle.clock())
        assert not decided(throttle, user="u").allowed
        throttle.clock.advance(ready - throttle.clock())
        if refusal.reason is Reason.GPU:
            Throttle.tick(throttle)  # the sample that the wait named
        assert decided(throttle, user="u").allowed


class TestPermit:
    """Each permit is settled exactly once, whatever happens in the block."""

    @pytest.mark.parametrize(
        ("error", "outcome"),
        [
            (None, Outcome.SUCCESS),
            (ValueError("broken"), Outcome.FAILURE),
            (asyncio.CancelledError(), Outcome.NEUTRAL),
            (KeyboardInterrupt(), Outcome.NEUTRAL),
        ],
    )
    def test_the_block_says_how_it_ended(self, error: BaseException | None, outcome: Outcome) -> None:
        throttle = throttle_for_tests()
        permit = _permit(throttle)
        with contextlib.nullcontext() if error is None else pytest.raises(type(error)), permit:
            assert _active(throttle) == 1
            if error is not None:
                raise error
        assert permit.settled
        assert _outcomes(throttle) == {outcome: 1}
        assert _active(throttle) == 0

    def test_a_second_settling_changes_nothing_and_is_counted(self) -> None:
        throttle = throttle_for_tests()
        with _permit(throttle) as permit:
            permit.settle(Outcome.FAILURE)
        permit.settle()
        assert _outcomes(throttle) == {Outcome.FAILURE: 1}
        assert _active(throttle) == 0
        assert throttle.snapshot().stale_results == 2

    def test_64_threads_that_settle_one_permit_settle_it_once(self) -> None:
        throttle = throttle_for_tests()
        permit = _permit(throttle)
        _together(64, lambda _: permit.settle())
        assert _outcomes(throttle) == {Outcome.SUCCESS: 1}
        assert throttle.snapshot().stale_results == 63

    def test_a_duration_that_did_not_end_by_itself_is_not_observed(self) -> None:
        throttle = throttle_for_tests()
        for outcome in Outcome:
            permit = _permit(throttle)
            throttle.clock.advance(0.3)
            permit.settle(outcome)
        durations = throttle.snapshot().durations[Priority.MID]
        assert sum(durations.counts) == 2
        assert durations.total_s == pytest.approx(0.6)

    def test_a_rejection_has_nothing_to_settle(self) -> None:
        throttle = heated(throttle_for_tests(), 96.0)
        rejection = throttle.try_admit(Demand(Priority.HIGH))
        assert isinstance(rejection, Rejection)
        assert not rejection.admitted
        assert repr(rejection) == "Rejection(Demand(high, user='', cost=1), gpu:stop)"
        assert _active(throttle) == 0

    def test_says_whether_it_is_open(self) -> None:
        permit = _permit(throttle_for_tests())
        assert repr(permit) == "Permit(Demand(mid, user='', cost=1), open)"
        permit.settle()
        assert "settled" in repr(permit)


def _permit(throttle: Throttle) -> Permit:
    permit = throttle.try_admit(Demand())
    assert isinstance(permit, Permit)
    return permit


def _active(throttle: Throttle) -> int:
    return sum(throttle.snapshot().active.values())


def _outcomes(throttle: Throttle) -> dict[Outcome, int]:
    return {outcome: n for (_, outcome), n in throttle.snapshot().outcomes.items() if n}


def _together(threads: int, work: Callable[[int], object]) -> None:
    """Run ``work`` in many threads that begin at the same moment."""
    barrier = threading.Barrier(threads)
    errors: list[Exception] = []

    def run(number: int) -> None:
        barrier.wait(DEADLINE_S)
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - the test's thread raises it
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert not errors


FAST: dict[str, Any] = {"rate_mid_rps": "100000/s"}


class TestConcurrency:
    """Exactly the limit, however many ask at once."""

    @pytest.fixture(autouse=True)
    def _threads_change_often(self) -> Iterator[None]:
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        yield
        sys.setswitchinterval(before)

    async def test_512_cold_tasks_admit_exactly_the_limit(self) -> None:
        throttle = throttle_for_tests(user_limit="100/minute", **FAST)
        answers = await asyncio.gather(*(throttle.admit(Demand(user="u")) for _ in range(512)))
        assert sum(answer.admitted for answer in answers) == 100
        snapshot = throttle.snapshot()
        assert snapshot.requests[Priority.MID, "admitted", Reason.OK] == 100
        assert snapshot.requests[Priority.MID, "limited", Reason.USER] == 412

    def test_64_threads_admit_exactly_the_limit(self) -> None:
        throttle = throttle_for_tests(user_limit="100/minute", **FAST)
        counts = [0] * 64

        def ask(number: int) -> None:
            counts[number] = admitted(throttle, 8, user="u")

        _together(64, ask)
        assert sum(counts) == 100

    def test_64_threads_take_exactly_the_burst(self) -> None:
        throttle = throttle_for_tests(rate_mid_rps="100/s")
        counts = [0] * 64

        def ask(number: int) -> None:
            counts[number] = admitted(throttle, 8)

        _together(64, ask)
        assert sum(counts) == 100
        assert throttle.snapshot().tokens[Priority.MID] == 0.0

    def test_all_limits_are_asked_in_one_go(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Threads seldom meet at the wrong moment by themselves, so the lock is looked at."""
        throttle = throttle_for_tests(user_limit="1/minute")
        lock: Any = throttle._rows.lock
        held: list[bool] = []

        def watched(room: Any, name: str) -> None:
            original = getattr(room, name)

            def call(*args: Any) -> Any:
                held.append(lock._is_owned())
                return original(*args)

            monkeypatch.setattr(room, name, call)

        watched(throttle._buckets, "take")
        watched(throttle._windows, "hit")
        assert admitted(throttle, 2, user="u") == 1
        assert held == [True] * 4

    def test_a_snapshot_under_load_is_one_moment(self) -> None:
        throttle = Throttle(Settings(gpu="none", rate_mid_rps="1000000/s"))
        done = threading.Event()
        seen: list[Snapshot] = []

        def look(number: int) -> None:
            if number:
                for _ in range(300):
                    with _permit(throttle):
                        pass
                done.set()
            else:
                while not done.is_set():
                    seen.append(throttle.snapshot())

        _together(4, look)
        seen.append(throttle.snapshot())
        totals = [_consistent(snapshot) for snapshot in seen]
        assert totals == sorted(totals)
        assert totals[-1] == 900


def _consistent(snapshot: Snapshot) -> int:
    """Requests admitted so far, if all counts of the snapshot agree with that number."""
    total = snapshot.requests[Priority.MID, "admitted", Reason.OK]
    ended = sum(snapshot.outcomes[Priority.MID, outcome] for outcome in Outcome)
    assert total == ended + snapshot.active[Priority.MID]
    assert sum(snapshot.durations[Priority.MID].counts) == ended
    assert 0 <= snapshot.active[Priority.MID] <= 3
    return total


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
        throttle = heated(throttle_for_tests(), utilization_pct, samples=2)
        assert tuple(throttle.snapshot().rate_limit_rps.values()) == (1000, 500, 100)
        throttle.tick()
        assert tuple(throttle.snapshot().rate_limit_rps.values()) == pytest.approx(rates)

    def test_a_calm_sample_starts_the_count_anew(self) -> None:
        throttle = throttle_for_tests()
        for utilization_pct in (99, 99, 85, 99, 99):
            heated(throttle, utilization_pct, samples=1)
            assert throttle.regime().factor == 1.0
        assert heated(throttle, 99, samples=1).regime().factor == 0.0

    def test_the_cut_bucket_admits_burst_and_the_cut_rate(self) -> None:
        throttle = heated(throttle_for_tests(), 92.0)
        assert admitted(throttle, 200, Priority.LOW) == 100
        throttle.clock.advance(1.0)
        assert admitted(throttle, 200, Priority.LOW) == 40

    def test_the_shut_door_names_the_next_sample(self) -> None:
        throttle = heated(throttle_for_tests(sample_interval_s=2.0), 96.0)
        refusal = decided(throttle, Priority.HIGH)
        assert (refusal.reason, refusal.detail, refusal.retry_after_s) == (Reason.GPU, "gpu:stop", 2.0)
        throttle.clock.advance(0.5)
        assert decided(throttle).retry_after_s == 1.5

    def test_the_door_opens_at_the_first_calm_sample(self) -> None:
        throttle = heated(throttle_for_tests(), 96.0)
        assert admitted(throttle, 10) == 0
        assert admitted(heated(throttle, 50.0, samples=1), 10) == 10

    def test_without_a_source_the_rates_are_nominal(self) -> None:
        throttle = Throttle(Settings(gpu="none"), clock=ManualClock())
        assert (throttle.regime().telemetry, throttle.regime().why) == (Telemetry.NONE, Why.NO_DEVICE)
        assert throttle.regime().factor == 1.0
        assert throttle.snapshot().ready

    def test_the_policy_fixed_does_not_look(self) -> None:
        throttle = heated(throttle_for_tests(policy="fixed"), 100.0, samples=5)
        assert throttle.snapshot().policy is Policy.FIXED
        assert admitted(throttle, 10) == 10

    def test_workers_share_the_rates_and_not_the_user_limits(self) -> None:
        throttle = throttle_for_tests(workers=4, user_limit="3/minute")
        assert tuple(throttle.snapshot().rate_limit_rps.values()) == (250.0, 125.0, 25.0)
        assert admitted(throttle, 10, user="u") == 3

    def test_says_what_is_in_force(self) -> None:
        throttle = heated(throttle_for_tests(), 92.0)
        _permit(throttle)
        assert repr(throttle) == (
            "Throttle(tiers, factor=0.40 (tier), telemetry=fresh, rates=400/200/40/s, active=1)"
        )


class TestTrouble:
    """GPUs that hang, fail and get lost."""

    def test_a_hang_goes_down_the_ladder_by_age(self) -> None:
        throttle = heated(throttle_for_tests(), 92.0)
        throttle.gpu.hang()
        heard_s = throttle.clock()
        for age_s, state in (
            (2.0, Telemetry.FRESH),
            (2.001, Telemetry.LATE),
            (3.0, Telemetry.LATE),
            (3.001, Telemetry.STALE),
            (30.0, Telemetry.STALE),
            (30.001, Telemetry.BLIND),
        ):
            throttle.clock.advance(heard_s + age_s - throttle.clock())
            assert throttle.regime().telemetry is state
        assert throttle.regime().factor == 1.0

    def test_the_cut_is_held_and_then_let_go_slowly(self) -> None:
        throttle = heated(throttle_for_tests(), 92.0)
        throttle.gpu.hang()
        factors = [throttle.tick().factor for _ in range(40)]
        assert factors[:3] == [0.4, 0.4, 0.4]
        assert factors == sorted(factors)
        assert max(b - a for a, b in pairwise(factors)) < 0.03
        assert factors[-1] == 1.0

    @pytest.mark.parametrize(
        ("unknown", "factor"), [("open", 1.0), ("last", 0.4), ("conservative", 0.7), ("closed", 0.0)]
    )
    def test_what_is_assumed_of_a_silent_gpu_is_a_setting(self, unknown: str, factor: float) -> None:
        throttle = heated(throttle_for_tests(gpu_unknown=unknown), 92.0)
        throttle.gpu.raises(ProviderUnavailable("gone"))
        assert throttle.tick(40).factor == pytest.approx(factor)
        assert throttle.regime().telemetry is Telemetry.BLIND
        assert throttle.snapshot().controller_errors == 40

    def test_a_broken_configuration_is_blindness_at_once(self) -> None:
        throttle = heated(throttle_for_tests(), 92.0)
        throttle.gpu.raises(ProviderMisconfigured("no such device"))
        assert throttle.tick().telemetry is Telemetry.BLIND

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
        assert throttle.tick().why is Why.LOST
        assert decided(throttle).detail == "gpu:lost"
        assert not throttle.snapshot().ready
        throttle.gpu.recover()
        throttle.tick()
        assert throttle.snapshot().ready
        assert decided(throttle).allowed

    def test_recovery_is_believed_after_three_samples(self) -> None:
        throttle = heated(throttle_for_tests(gpu_unknown="last"), 96.0)
        throttle.gpu.hang()
        throttle.tick(10)
        throttle.gpu.recover()
        throttle.gpu.utilization_pct = 10.0
        assert [throttle.tick().factor for _ in range(3)] == [0.0, 0.0, 1.0]

    def test_rows_that_repeat_their_old_time_are_no_news(self) -> None:
        throttle = heated(throttle_for_tests(), 50.0, samples=1)
        throttle.gpu.stale()
        throttle.tick(10)
        assert throttle.regime().telemetry is Telemetry.STALE

    def test_one_hot_reading_shown_three_times_is_one_strike(self) -> None:
        throttle = heated(throttle_for_tests(), 99.0, samples=1)
        throttle.gpu.stale()
        throttle.tick(2)
        assert throttle.regime().factor == 1.0

    def test_rows_that_are_no_samples_change_nothing(self) -> None:
        class Broken(FakeGpu):
            def read(self) -> Any:
                return [None, "garbage"]

        throttle = throttle_for_tests(gpu=Broken())
        throttle.tick(3)
        assert throttle.snapshot().controller_errors == 3
        assert admitted(throttle, 5) == 5

    def test_what_observing_raises_does_not_end_the_sampling(self) -> None:
        class Fragile(ManualThrottle):
            broken = True

            def observe(self, samples: Any) -> Any:
                if self.broken:
                    raise RuntimeError("no")
                return super().observe(samples)

        made = throttle_for_tests()
        throttle = Fragile(made.settings, made.clock, made.gpu)
        heated(throttle, 92.0)
        assert throttle.snapshot().controller_errors == 3
        assert admitted(throttle, 5) == 5
        throttle.broken = False
        assert throttle.tick(3).factor == 0.4


class Watched(FakeGpu):
    """A fake GPU that blocks its reader and says when it is being read."""

    def __init__(self) -> None:
        super().__init__(blocks=True)
        self.begun = threading.Semaphore(0)
        self.readers: set[int] = set()

    def read(self) -> Any:
        self.readers.add(threading.get_ident())
        self.begun.release()
        return super().read()


class Observed(Throttle):
    """A throttle that says when it has heard of a sample."""

    def __init__(self, settings: Settings, *, gpu: FakeGpu, clock: ManualClock) -> None:
        super().__init__(settings, gpu=gpu, clock=clock)
        self.observed = threading.Event()

    def observe(self, samples: Sequence[GpuSample]) -> Regime:
        regime = super().observe(samples)
        self.observed.set()
        return regime


class TestThread:
    """The sampler's thread: never in the way, never two, never left behind."""

    def test_a_hung_read_adds_nothing_to_a_request_and_shows_by_its_age(self) -> None:
        clock, gpu = ManualClock(), Watched()
        throttle = Observed(Settings(), gpu=gpu, clock=clock)
        try:
            throttle.start()
            assert throttle.observed.wait(DEADLINE_S)
            assert throttle.regime().telemetry is Telemetry.FRESH
            gpu.hang()
            assert gpu.begun.acquire(timeout=DEADLINE_S)
            assert throttle._sampler is not None
            throttle._sampler.wake()
            assert gpu.begun.acquire(timeout=DEADLINE_S)
            clock.advance(3.001)
            states: list[Telemetry] = []
            _together(8, lambda _: states.extend([throttle.regime().telemetry] * admitted(throttle, 20)))
            assert states == [Telemetry.STALE] * 160
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
            assert gpu.begun.acquire(timeout=DEADLINE_S)
            throttle.stop()
            throttle.stop()
            decided(throttle)
            assert gpu.begun.acquire(timeout=DEADLINE_S)
        finally:
            throttle.stop()

    def test_goes_when_its_throttle_goes(self) -> None:
        gpu = Watched()
        throttle = Throttle(Settings(), gpu=gpu)
        throttle.start()
        assert gpu.begun.acquire(timeout=DEADLINE_S)
        (reader,) = (thread for thread in threading.enumerate() if thread.ident in gpu.readers)
        gone = weakref.ref(throttle)
        del throttle
        gc.collect()
        assert gone() is None
        reader.join(DEADLINE_S)
        assert not reader.is_alive()

    def test_a_throttle_whose_read_hangs_can_go_too(self) -> None:
        gpu = Watched()
        gpu.hang()
        throttle = Throttle(Settings(), gpu=gpu)
        throttle.start()
        assert gpu.begun.acquire(timeout=DEADLINE_S)
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
    def forget(self):
        super().forget()
        self.read_here = threading.Event()

signal.alarm(20)
gpu = Watched()
throttle = Throttle(Settings(user_limit="3/minute"), gpu=gpu)
inherited = [throttle.try_admit(Demand(user="u")) for _ in range(2)]
assert gpu.read_here.wait(10)
held, fork = threading.Event(), threading.Event()
users = throttle._windows._by_priority[0].users

def hold():
    with throttle._rows.lock:
        users._ring.append("half-way in")
        held.set()
        fork.wait(10)
        users._ring.pop()

threading.Thread(target=hold, daemon=True).start()
assert held.wait(10)
child = os.fork()
if child == 0:
    signal.alarm(20)
    snapshot = throttle.snapshot()
    assert not any(snapshot.requests.values()), snapshot.requests
    assert not any(snapshot.active.values())
    for permit in inherited:
        permit.settle()
    assert not any(throttle.snapshot().active.values()), throttle.snapshot().active
    assert throttle.try_admit(Demand(user="u")).admitted
    assert not throttle.try_admit(Demand(user="u")).admitted
    throttle._windows.sweep(0.0, 2)
    assert gpu.read_here.wait(10)
    assert sum(throttle.snapshot().requests.values()) == 2
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


class Lifespan:
    """A lifespan driven by hand: what the server sends, and what it hears."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.served = False

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        self.served = True
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def drive(self, throttle: Throttle) -> list[str]:
        messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

        async def receive() -> dict[str, Any]:
            return next(messages)

        async def send(message: dict[str, Any]) -> None:
            self.sent.append(message)

        await ThrottleMiddleware(self.app, throttle=throttle)({"type": "lifespan"}, receive, send)
        return [message["type"].removeprefix("lifespan.") for message in self.sent]


class TestGpuRequired:
    """Whether a start without a first sample fails."""

    async def test_a_sample_in_time_lets_the_service_start(self) -> None:
        lifespan = Lifespan()
        throttle = Throttle(Settings(gpu_required=True), gpu=FakeGpu())
        assert await lifespan.drive(throttle) == ["startup.complete", "shutdown.complete"]

    async def test_no_sample_ends_the_start_with_its_cause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(middleware, "FIRST_SAMPLE_WITHIN_S", 0.01)
        gpu = FakeGpu()
        gpu.raises(ProviderUnavailable("no driver"))
        lifespan = Lifespan()
        throttle = Throttle(Settings(gpu_required=True), gpu=gpu)
        assert await lifespan.drive(throttle) == ["startup.failed"]
        assert "GPU_REQUIRED" in lifespan.sent[0]["message"]
        assert not lifespan.served
        assert throttle._sampler is not None
        assert not throttle._sampler.running

    async def test_else_a_service_starts_without_any_sample(self) -> None:
        gpu = FakeGpu(blocks=True)
        gpu.hang()
        lifespan = Lifespan()
        throttle = Throttle(Settings(), gpu=gpu)
        try:
            assert await lifespan.drive(throttle) == ["startup.complete", "shutdown.complete"]
        finally:
            gpu.recover()


def test_reads_the_environment_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_RATE_LOW_RPS", "7")
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", "none")
    assert Throttle.from_env().snapshot().rate_limit_rps[Priority.LOW] == 7.0
    assert Throttle().settings.rate_low_rps == 100.0


def test_samples_may_be_handed_in() -> None:
    clock = ManualClock()
    throttle = Throttle(Settings(gpu="none"), clock=clock)
    for _ in range(3):
        clock.advance(1.0)
        regime = throttle.observe(
            [GpuSample(device="X", index=0, taken_at_s=clock(), source="elsewhere", utilization_pct=92.0)]
        )
    assert regime.factor == 0.4
    assert throttle.tick().factor == 0.4
    assert throttle.snapshot().devices[0].source == "elsewhere"


def test_idle_users_leave_with_the_samples() -> None:
    throttle = throttle_for_tests(user_limit="1/second")
    for number in range(50):
        decided(throttle, Priority.HIGH, f"user {number}")
    assert throttle.snapshot().users == 50
    throttle.tick(3)
    assert throttle.snapshot().users == 0


def test_odd_things_are_counted_by_name() -> None:
    throttle = throttle_for_tests()
    for name in ("odd", "odd", "even"):
        throttle.hint(name)
    throttle.count_exempt()
    hints = throttle.snapshot().hints
    assert (hints["odd"], hints["even"], hints["unknown_priority"]) == (2, 1, 0)
    assert throttle.snapshot().exempt == 1
