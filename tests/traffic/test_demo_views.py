"""What the demonstration shows and says: pure functions, tested on their text."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from autoglm_throttle.model import Policy, Priority
from autoglm_throttle.settings import Settings
from autoglm_throttle.traffic.arrivals import Arrivals, Crowd, Shape, plan
from autoglm_throttle.traffic.books import Books, Result
from autoglm_throttle.traffic.demo import scenario, screen, story
from autoglm_throttle.traffic.demo.tally import REMEMBERED, Lately
from autoglm_throttle.traffic.demo.view import PLAIN_TURNS, View
from autoglm_throttle.traffic.ending import Ending
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.histogram import Histogram
from autoglm_throttle.traffic.simulate import BatchSpec, LlmSpec
from tests.traffic.test_trace import synthetic, written

TIERS = ((85.0, 0.7), (90.0, 0.4), (95.0, 0.0))


def picture(utilization_pct: float | None = 62.0, factor: float = 1.0) -> screen.Frame:
    return screen.Frame(
        elapsed_s=12.25,
        length_s=60.0,
        phase="2x",
        offered_rps=401.0,
        in_flight=33,
        utilization_pct=utilization_pct,
        power_w=None if utilization_pct is None else 420.0,
        tiers=TIERS,
        factor=factor,
        why="tier",
        classes={
            priority: screen.ClassFrame(1000.0 * factor, 40.0, 2.0, 1.0, None if priority else 0.018)
            for priority in Priority
        },
    )


def test_the_view_shows_gpu_tiers_factor_and_every_class() -> None:
    lines = screen.draw(picture(), color=False)
    assert lines[0] == " 12.2 of 60 s   phase 2x        offered    401/s   in flight    33"
    assert lines[1] == "GPU     [" + "#" * 31 + " " * 11 + "|  | |  ]  62.0 %  420 W"
    assert lines[3].startswith(
        "factor  1.00  (tier)   lines: above 85 % x 0.7, above 90 % x 0.4, above 95 % x 0"
    )
    assert [line.split()[0] for line in lines[5:]] == ["high", "mid", "low"]
    assert lines[5].split()[1:] == ["1000/s", "40/s", "2/s", "1/s", "18", "ms"]
    assert lines[6].split()[-1] == "-"


def test_the_number_of_lines_never_changes_so_frames_can_be_drawn_over_each_other() -> None:
    counts = {len(screen.draw(picture(pct), color=on)) for pct in (None, 0.0, 99.0) for on in (True, False)}
    assert len(counts) == 1


def test_each_tier_line_stands_under_its_mark() -> None:
    lines = screen.draw(picture(0.0), color=False)
    for edge in ("85", "90", "95"):
        assert lines[1][lines[2].index(edge)] == "|"


def test_unknown_utilization_is_not_shown_as_zero() -> None:
    assert "unknown" in screen.draw(picture(None), color=False)[1]
    assert "unknown" in screen.plain(picture(None))


@pytest.mark.parametrize(
    ("utilization_pct", "shade"),
    [(85.0, screen.GREEN), (85.1, screen.YELLOW), (95.0, screen.YELLOW), (95.1, screen.RED)],
)
def test_the_bar_changes_color_above_the_lines(utilization_pct: float, shade: str) -> None:
    assert screen.bar(utilization_pct, TIERS, color=True).startswith(shade)
    assert "\x1b" not in screen.bar(utilization_pct, TIERS, color=False)


def test_the_bar_is_full_at_most() -> None:
    assert screen.bar(250.0, (), color=False) == "#" * screen.BAR


def test_durations_are_told_in_fitting_units() -> None:
    assert [screen.seconds(value) for value in (None, 0.0184, 0.9994, 1.84)] == [
        "-",
        "18 ms",
        "999 ms",
        "1.8 s",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_drawn_over_and_anything_else_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal, file = Terminal(), io.StringIO()
    for out in (terminal, file):
        view = View(out)
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
    View(terminal).show(picture())
    assert escape not in terminal.getvalue()


def test_lately_forgets_and_keeps_the_priorities_apart() -> None:
    lately = Lately(bytes((Priority.HIGH, Priority.LOW)))
    lately.note(0, Ending.OK, 0.1)
    lately.note(1, Ending.LIMITED, 0.0)
    lately.note(1, Ending.REJECTED, 0.0)
    lately.note(1, Ending.TIMEOUT, 0.0)
    high, low = lately.of(Priority.HIGH), lately.of(Priority.LOW)
    assert (high.admitted, high.limited, high.rejected, high.failed) == (1, 0, 0, 0)
    assert (low.admitted, low.limited, low.rejected, low.failed) == (0, 1, 1, 1)
    assert lately.offered(2) == 2
    for turn in range(REMEMBERED):
        lately.turn(2 + turn)
    assert lately.of(Priority.HIGH).admitted == 0
    assert lately.offered(10) == 8
    assert lately.turns == REMEMBERED


def played(endings: dict[str, list[Ending]], *, aborted: bool = False) -> Result:
    """A result in which the requests of each phase ended as listed, the rest with OK."""
    levels = ",".join("10" for _ in scenario.PHASES)
    made = plan(Shape.parse(f"step:{levels}:1"), Arrivals.UNIFORM, Crowd())
    object.__setattr__(made, "names", tuple(name for name, _, _ in scenario.PHASES))
    books = Books(made)
    todo = {name: list(listed) for name, listed in endings.items()}
    for index in range(len(made)):
        listed = todo.get(made.names[made.segments[index]], [])
        books.close(index, listed.pop() if listed else Ending.OK)
    return Result(books, Histogram(), 4.0, 0, aborted)


ORDERLY = {"2x": [Ending.LIMITED], "5x": [Ending.REJECTED] * 3}


def test_an_orderly_run_has_no_problems() -> None:
    assert story.problems(played(ORDERLY), story.Watched(), phased=True) == []
    assert story.problems(played({}), story.Watched(), phased=False) == []
    assert story.problems(played({}, aborted=True), story.Watched(), phased=True) == []


@pytest.mark.parametrize(
    ("endings", "problem"),
    [
        ({"2x": [Ending.LIMITED]}, "nobody was refused at 5x"),
        ({"5x": [Ending.LIMITED]}, "nobody was refused at 2x"),
        (
            ORDERLY | {"calm": [Ending.TIMEOUT, Ending.SERVER_ERROR]},
            "2 requests failed: server_error 1, timeout 1",
        ),
    ],
)
def test_problems_are_named(endings: dict[str, list[Ending]], problem: str) -> None:
    assert story.problems(played(endings), story.Watched(), phased=True) == [problem]


def test_lost_requests_and_a_dead_service_are_problems() -> None:
    result = played(ORDERLY)
    result.books.rows[0, Priority.LOW].planned += 1
    found = story.problems(result, story.Watched(died=True), phased=True)
    assert [text.split()[0] for text in found] == ["the", "the"]
    assert "do not balance" in found[1]


def test_the_sentence_tells_true_numbers() -> None:
    watched = story.Watched()
    for pct, factor in ((50.0, 1.0), (97.0, 0.4), (99.5, 0.0), (None, 1.0), (96.0, 0.7)):
        watched.see({"utilization_pct": pct, "factor": factor})
    told = story.sentence(played(ORDERLY), watched)
    assert told.startswith(
        "The card rose to 100 % and the throttle cut the rates 3 times, down to 0 of nominal:"
    )
    assert "of 40 requests 36 were served, 4 were told at once when to come back, 0 failed" in told
    calm = story.sentence(played({}), story.Watched(peak_pct=60.0))
    assert calm.startswith(
        "The card rose to 60 % and the throttle never cut the rates: of 40 requests 40 were"
    )


def test_the_table_shows_phases_priorities_and_reasons() -> None:
    result = played(ORDERLY)
    result.books.rows[2, Priority.LOW].reasons.update({"gpu:stop": 2, "": 1})
    lines = screen.table(result.books)
    assert lines[0].split() == [
        *("phase", "priority", "sent", "admitted", "limited", "rejected", "failed", "p95", "why", "refused")
    ]
    low = next(line for line in lines if line.startswith("5x") and "low" in line)
    assert low.endswith("gpu:stop 2, not said 1")
    assert lines[-1].split()[:6] == ["all", "40", "36", "1", "3", "0"]


def test_phases_keep_their_proportions_whatever_the_length() -> None:
    played_s = scenario.phases(12.0)
    assert played_s.length_s == pytest.approx(12.0)
    planned = played_s.plan.planned()
    for segment, (_, load, share) in enumerate(scenario.PHASES):
        wanted = scenario.CAPACITY_RPS * load * share * 12.0
        count = sum(planned[segment, priority] for priority in Priority)
        assert count == pytest.approx(wanted, abs=5.0 * wanted**0.5)


def test_a_trace_becomes_requests_with_its_tokens(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["2024-01-01 00:00:00,7,0", "2024-01-01 00:00:10,9,5", *synthetic(1)])
    whole = scenario.traced(path, 20.0, None)
    assert list(whole.plan.offsets)[:2] == [0.0, 0.5]
    assert whole.bodies[:2] == (b'{"context_tokens": 7, "tokens": 1}', b'{"context_tokens": 9, "tokens": 5}')
    assert len(scenario.traced(path, 20.0, 0.6).plan) == 2
    with pytest.raises(TrafficError):
        scenario.traced(tmp_path / "none.csv", 20.0, None)


def test_the_card_fits_the_scenario() -> None:
    assert isinstance(scenario.card(None).work, BatchSpec)
    fast = scenario.card(10.0).work
    assert isinstance(fast, LlmSpec)
    assert fast.step_s == LlmSpec().step_s / 10.0


@pytest.mark.parametrize("policy", Policy)
def test_the_environment_is_one_the_settings_accept(policy: Policy) -> None:
    settings = Settings.from_env(scenario.environment(policy))
    assert settings.policy is policy
    assert scenario.STATE_PATH in settings.exempt_paths
    assert settings.user_limit
