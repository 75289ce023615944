"""Screen and summary of the demonstration: pure functions, tested on their text."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.traffic import request_log
from autoglm_throttle.traffic.plan import Arrivals, LoadLevel, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result, RunCost
from autoglm_throttle.types import Policy, Priority
from examples.demo import scenario, screen, summary
from examples.demo.screen import PLAIN_TURNS, RECENT_TURNS, DemoCounts, DemoView, RecentCounts, outcome_of

TIERS = ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0))


def picture(
    utilization_pct: float | None = 62.0,
    factor: float = 1.0,
    *,
    gate: dict[str, object] | None = None,
    downstream: dict[str, object] | None = None,
) -> screen.ScreenFrame:
    return screen.ScreenFrame(
        elapsed_s=12.25,
        length_s=60.0,
        phase="2x",
        offered_rps=401.0,
        open=33,
        state={
            "policy": "adaptive",
            "armed": False,
            "measure": "GPU",
            "utilization_pct": utilization_pct,
            "power_w": None if utilization_pct is None else 420.0,
            "tiers": TIERS,
            "table_factor": 0.4,
            "factor": factor,
            "cause": "tier",
            "budget_rps": None if gate is None else 229.6,
            "rate_rps": {priority.label: 1000.0 * factor for priority in Priority},
            "concurrency": gate,
            "downstream": downstream or {},
        }
        | ({"policy": "tiers"} if gate is None else {}),
        recent={priority: DemoCounts(80, 4, 2, 0, None if priority else 0.018) for priority in Priority},
        span_s=2.0,
    )


def downstream_state(state: str, retry_after_s: float, level: str, fallbacks: int) -> dict[str, object]:
    return {
        "name": "related",
        "state": state,
        "retry_after_s": retry_after_s,
        "level": level,
        "fallbacks": {"outage": fallbacks},
    }


def limiter(in_flight: int, limit: float, service_rps: float | None) -> dict[str, object]:
    waiting = {"high": 3, "mid": 4, "low": 5}
    return {"in_flight": in_flight, "limit": limit, "service_rps": service_rps, "waiting": waiting}


OPEN = downstream_state("open", 10.0, "static", 123_456)
BUSY = limiter(31, 32.4, 198.3)
QUEUED = "not armed yet: requests were queued for fewer than three samples"


def test_the_view_shows_gpu_table_factor_and_every_class() -> None:
    lines = screen.draw(picture(), color=False)
    assert lines[0] == " 12.2 of 60 s   phase 2x        offered    401/s   open    33"
    assert lines[1] == "GPU     [" + "#" * 37 + " " * 14 + "|  |  |  ]  62.0 %"
    assert lines[2] == "  420 W " + " " * 52 + "85 90 95"
    assert lines[3] == "table   above 85 % x 0.7, above 90 % x 0.4, above 95 % x 0; now x 0.4"
    assert lines[4] == "        applied as it is: policy tiers"
    assert lines[5] == "factor  1.00  (tier)"
    assert [line.split()[0] for line in lines[9:]] == ["high", "mid", "low"]
    assert lines[9].split()[1:] == ["1000/s", "-", "40/s", "2/s", "1/s", "18", "ms"]
    assert lines[10].split()[-1] == "-"


def test_view_shows_queues_limit_and_service_rate() -> None:
    lines = screen.draw(picture(gate=BUSY), color=False)
    assert lines[5] == "factor  1.00  (tier)   at most 230/s in all"
    assert lines[6] == "limit   31 of 32 in flight, 12 queued, service 198/s"
    assert [line.split()[2] for line in lines[9:]] == ["3", "4", "5"]
    heading = lines[8].index("waiting") + len("waiting")
    assert [line[:heading].split()[-1] for line in lines[9:]] == ["3", "4", "5"]


@pytest.mark.parametrize(
    ("state", "shade"), [("closed", screen.GREEN), ("half_open", screen.YELLOW), ("open", screen.RED)]
)
def test_the_view_shows_the_guard_of_the_downstream(state: str, shade: str) -> None:
    seen = downstream_state(state, 0.0, "full", 7)
    line = screen.draw(picture(downstream=seen), color=False)[7]
    assert line == f"guard   related {state}; 7 by fallback; degradation full"
    assert shade in screen.draw(picture(downstream=seen), color=True)[7]
    assert screen.draw(picture(), color=False)[7] == "guard   no call to the downstream yet"


def test_view_without_a_concurrency_limit_or_a_service_rate() -> None:
    assert screen.draw(picture(), color=False)[6] == "limit   none under this policy"
    new = screen.draw(picture(gate=limiter(0, 64.0, None)), color=False)[6]
    assert new.endswith("service not known yet")


def test_plain_line_contains_the_same_values() -> None:
    line = screen.plain(picture(gate=BUSY, downstream=OPEN))
    assert "guard related open, probe in 10.0 s; 123456 by fallback; degradation static  " in line
    for part in (
        "2x",
        "62 %",
        "factor 1.00",
        f"table 0.4, {QUEUED}",
        "31 of 32 in flight",
    ):
        assert part in line
    assert "high 40/2/1 p95 18 ms" in line


PICTURES = [
    *(picture(pct) for pct in (None, 0.0, 100.0)),
    picture(100.0, 0.0, gate=limiter(12_345, 12_345.0, 12_345.0), downstream=OPEN),
]


@pytest.mark.parametrize("frame", PICTURES)
def test_no_line_is_wider_than_a_terminal(frame: screen.ScreenFrame) -> None:
    assert max(map(len, screen.draw(frame, color=False))) <= 80


def test_number_of_lines_is_constant() -> None:
    counts = {len(screen.draw(frame, color=on)) for frame in PICTURES for on in (True, False)}
    assert len(counts) == 1


def test_each_tier_number_is_below_its_mark() -> None:
    lines = screen.draw(picture(0.0), color=False)
    for edge in ("85", "90", "95"):
        assert lines[1][lines[2].index(edge)] == "|"


@given(st.lists(st.integers(0, 100), unique=True, max_size=8))
def test_tier_numbers_never_touch(edges: list[int]) -> None:
    edges.sort()
    assert screen.scale([(float(edge), 0.5) for edge in edges]).split() == [str(edge) for edge in edges]


def test_unknown_utilization_is_not_shown_as_zero() -> None:
    assert "unknown" in screen.draw(picture(None), color=False)[1]
    assert "unknown" in screen.plain(picture(None))


@pytest.mark.parametrize(
    ("utilization_pct", "shade"),
    [(85.0, screen.GREEN), (85.1, screen.YELLOW), (95.0, screen.YELLOW), (95.1, screen.RED)],
)
def test_bar_changes_color_above_the_tiers(utilization_pct: float, shade: str) -> None:
    assert screen.bar(utilization_pct, TIERS, color=True).startswith(shade)
    assert "\x1b" not in screen.bar(utilization_pct, TIERS, color=False)


def test_the_bar_is_full_at_most() -> None:
    assert screen.bar(250.0, (), color=False) == "#" * screen.BAR


def test_durations_have_fitting_units() -> None:
    assert [screen.seconds(value) for value in (None, 0.0184, 0.9994, 1.84)] == [
        "-",
        "18 ms",
        "999 ms",
        "1.8 s",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_is_redrawn_and_a_file_gets_some_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        view = DemoView(out)
        for _ in range(PLAIN_TURNS + 1):
            view.show(picture())
    lines = len(screen.draw(picture(), color=False))
    assert terminal.getvalue().count(f"\x1b[{lines}A") == PLAIN_TURNS
    assert screen.GREEN in terminal.getvalue()
    assert file.getvalue() == (screen.plain(picture()) + "\n") * 2


@pytest.mark.parametrize(
    ("name", "value", "escape"), [("NO_COLOR", "1", screen.GREEN), ("TERM", "dumb", "\x1b")]
)
def test_colors_and_drawing_can_be_switched_off(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, escape: str
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    terminal = Terminal()
    DemoView(terminal).show(picture())
    assert escape not in terminal.getvalue()


def test_recent_counts_expire_and_separate_priorities() -> None:
    lately = RecentCounts(bytes((Priority.HIGH, Priority.LOW)))
    lately.record(0, RequestResult.OK, 0.1)
    lately.record(1, RequestResult.LIMITED, 0.0)
    lately.record(1, RequestResult.SHED, 0.0)
    lately.record(1, RequestResult.TIMEOUT, 0.0)
    high, low = lately.of(Priority.HIGH), lately.of(Priority.LOW)
    assert (high.admitted, high.limited, high.shed, high.failed) == (1, 0, 0, 0)
    assert (low.admitted, low.limited, low.shed, low.failed) == (0, 1, 1, 1)
    assert lately.offered(2) == 2
    for turn in range(RECENT_TURNS):
        lately.turn(2 + turn)
    assert lately.of(Priority.HIGH).admitted == 0
    assert lately.offered(10) == 8
    assert lately.turns == RECENT_TURNS


def played(endings: dict[str, list[RequestResult]], *, aborted: bool = False) -> Result:
    """A result in which the requests of each phase ended as listed, the rest with OK."""
    made = make_plan(
        LoadShape([LoadLevel(10.0, 1.0, name) for name, _, _ in scenario.PHASES]),
        Arrivals.UNIFORM,
        PriorityMix(),
    )
    entered = request_log.RequestLog(len(made))
    todo = {name: list(listed) for name, listed in endings.items()}
    for index, segment in enumerate(made.segments):
        listed = todo.get(made.names[segment], [])
        entered.close(index, listed.pop() if listed else RequestResult.OK, 0.01)
    return Result(RequestSource(made), entered, RunCost(elapsed_s=6.0), aborted)


GUARDED = {
    "name": "related",
    "state": "closed",
    "openings": 1,
    "calls": 90,
    "failed": 5,
    "fallbacks": {"outage": 40, "load": 2},
}
ORDERLY = {"2x": [RequestResult.LIMITED], "5x": [RequestResult.SHED] * 3}


def test_an_orderly_run_has_no_problems() -> None:
    assert summary.problems(played(ORDERLY), summary.DemoObserver(downstream=GUARDED), phased=True) == []
    assert summary.problems(played({}), summary.DemoObserver(), phased=False) == []
    assert summary.problems(played({}, aborted=True), summary.DemoObserver(), phased=True) == []


@pytest.mark.parametrize(
    ("endings", "problem"),
    [
        ({"2x": [RequestResult.LIMITED]}, "no request was rejected at 5x"),
        ({"5x": [RequestResult.LIMITED]}, "no request was rejected at 2x"),
        (
            ORDERLY | {"calm": [RequestResult.TIMEOUT, RequestResult.SERVER_ERROR]},
            "2 requests failed: server_error 1, timeout 1",
        ),
    ],
)
def test_problems_are_named(endings: dict[str, list[RequestResult]], problem: str) -> None:
    assert summary.problems(played(endings), summary.DemoObserver(downstream=GUARDED), phased=True) == [
        problem
    ]


@pytest.mark.parametrize(
    ("seen", "problem"),
    [
        (None, "the downstream was never called"),
        (GUARDED | {"openings": 0}, "the breaker of the downstream never opened"),
        (
            GUARDED | {"fallbacks": {"load": 9}},
            "no call was answered by a fallback while the downstream was unavailable",
        ),
        (GUARDED | {"state": "open"}, "the breaker of the downstream is open at the end"),
    ],
)
def test_a_downstream_that_was_not_guarded_is_a_problem(seen: dict[str, object] | None, problem: str) -> None:
    assert summary.problems(played(ORDERLY), summary.DemoObserver(downstream=seen), phased=True) == [problem]


def test_downstream_calls_are_summarized() -> None:
    told = summary.downstream_sentence(GUARDED)
    assert told == (
        "The downstream 'related' failed 5 times and its breaker opened once: 40 calls were answered by"
        " a fallback during its outage and 2 under load, 90 were made. It is closed now."
    )


def test_lost_requests_and_a_dead_service_are_problems() -> None:
    result = played(ORDERLY)
    result.request_log.results[0] = request_log.OPEN
    found = summary.problems(result, summary.DemoObserver(has_exited=True, downstream=GUARDED), phased=True)
    assert [text.split()[0] for text in found] == ["the", "the"]
    assert "do not add up" in found[1]


def looked(
    pct: float | None, factor: float, table: float = 1.0, waiting: int | None = None
) -> dict[str, object]:
    gate = None if waiting is None else {"waiting": {"high": 0, "mid": 1, "low": waiting - 1}}
    return {
        "measure": "GPU",
        "utilization_pct": pct,
        "factor": factor,
        "table_factor": table,
        "concurrency": gate,
    } | dict.fromkeys(("store", "downstream"))


def test_store_calls_are_summarized() -> None:
    watched = summary.DemoObserver()
    counts = {"decisions": 900, "round_trips": 300, "deny_cache_hits": 0, "fallbacks": 0}
    watched.observe(looked(50.0, 1.0) | {"store": counts})
    watched.observe(looked(50.0, 1.0))
    assert watched.store == counts
    told = summary.store_sentence("Valkey 9.1.2", counts)
    assert told == "Valkey 9.1.2 made 900 decisions on user limits in 300 round trips."
    told = summary.store_sentence("Redis 7.0.15", counts | {"deny_cache_hits": 40, "fallbacks": 3})
    assert told.endswith("; 40 repeated denials came from the local cache; 3 were made without it.")


def test_sentence_states_the_counts() -> None:
    watched = summary.DemoObserver()
    for pct, factor in ((50.0, 1.0), (97.0, 0.4), (99.5, 0.0), (None, 1.0), (96.0, 0.7)):
        watched.observe(looked(pct, factor, factor))
    told = summary.sentence(played(ORDERLY), watched)
    assert told.startswith(
        "GPU utilization rose to 100 % (tier table x 0.7, x 0.4, x 0)"
        " and the throttle reduced the rates 3 times, down to 0 of nominal:"
    )
    assert "of 60 requests 56 were served, 4 were rejected, 0 failed" in told
    calm = summary.sentence(played({}), summary.DemoObserver(peak_pct=60.0))
    assert calm.startswith(
        "GPU utilization rose to 60 % and the throttle never reduced the rates: of 60 requests 60 were"
    )


def test_sentence_states_the_longest_queue() -> None:
    watched = summary.DemoObserver()
    for factor, waiting in ((0.124, 3), (0.118, 41), (0.12, 7)):
        watched.observe(looked(100.0, factor, 0.0, waiting))
    told = summary.sentence(played(ORDERLY), watched)
    assert "reduced the rates once, down to 0.12 of nominal, and queued up to 41 requests: of" in told


def test_the_table_shows_phases_priorities_and_reasons() -> None:
    result = played(ORDERLY)
    segment = result.load.plan.names.index("5x")
    result.tallies[segment, Priority.LOW].reasons.update({"gpu:overload": 3, "queue:slow": 4})
    lines = screen.table(result)
    assert lines[0].split() == [
        *("phase", "priority", "sent", "admitted", "limited", "shed", "failed", "p95", "reasons")
    ]
    low = next(line for line in lines if line.startswith("5x") and "low" in line)
    assert low.endswith("queue:slow 4, gpu:overload 3, not given 2")
    assert lines[-1].split()[:6] == ["all", "60", "56", "1", "3", "0"]


@pytest.mark.parametrize(
    ("policy", "armed", "waiting", "told"),
    [
        (Policy.ADAPTIVE, True, 5, "armed: requests are queued; never below the completion rate"),
        (Policy.ADAPTIVE, False, 5, "not armed yet: requests were queued for fewer than three samples"),
        (Policy.ADAPTIVE, False, 0, "not applied: no request is queued"),
        (Policy.TIERS, False, None, "applied as it is: policy tiers"),
        (Policy.CONCURRENCY, False, 5, "not used: policy concurrency"),
        (Policy.FIXED, False, None, "not used: policy fixed"),
    ],
)
def test_view_states_how_the_tier_table_is_used(
    policy: Policy, armed: bool, waiting: int | None, told: str
) -> None:
    gate = None if waiting is None else {"waiting": {"high": 0, "mid": 0, "low": waiting}}
    assert outcome_of({"policy": policy.value, "armed": armed, "concurrency": gate}) == told
