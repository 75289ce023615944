"""The pages on admission control and on responses state the constants and the names of the code."""

import asyncio
import re

import pytest

from autoglm_throttle.asgi.dialects import PROBLEM
from autoglm_throttle.asgi.receive import BUFFER_BYTES
from autoglm_throttle.asgi.responses import ResponseBuilder
from autoglm_throttle.asgi.scope import Message
from autoglm_throttle.asgi.slot_watch import HEAD_OBJECTIVES, MIN_BYTES_PER_S
from autoglm_throttle.limiting import service_estimator as estimator
from autoglm_throttle.limiting import work_class
from autoglm_throttle.limiting.concurrency_limiter import FAST_PERIOD_S
from autoglm_throttle.limiting.memory_cap import CRASH_MIN, CRASH_SHARE
from autoglm_throttle.limiting.queue_wait import RETRY_MAX_S, RETRY_SHARE
from autoglm_throttle.limiting.quiet_answers import QUIET_MIN, QUIET_SHARE
from autoglm_throttle.settings import Settings, settings_table
from autoglm_throttle.types import ConcurrencyView, SlotUse
from tests.docs.pages import ROOT


def page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


PAGE, CLIENTS = page("admission-control.md"), page("responses.md")
SETTINGS = Settings()
LIMIT = SETTINGS.concurrency

PRINTED = {
    "classes": f"There are at most {work_class.CLASSES_MAX};",
    "samples": f"the median of the last {work_class.UNLOADED_SAMPLES}",
    "fast period": f"may end after {1e3 * FAST_PERIOD_S:g} ms",
    "unloaded per budget": f"The budget is {work_class.UNLOADED_PER_BUDGET:g} times the unloaded latency",
    "share of the objective": f"up to {work_class.BUDGET_SLO_SHARE:g} × `SLO_S`",
    "margin": f"at least {work_class.BUDGET_MARGIN:g} times the unloaded latency",
    "loaded per budget": f"at least {work_class.LOADED_PER_BUDGET:g} times that mean, if this is below "
    f"{work_class.BUDGET_SLO_SHARE:g} × `SLO_S`, or {work_class.LOADED_MARGIN:g} times, if this is below "
    f"{work_class.LOADED_SLO_SHARE:g} × `SLO_S`",
    "headroom": f"by at most {estimator.PROBE_FACTOR:g} times",
    "negligible": f"below {100 * estimator.NEGLIGIBLE:g} % of that of all work",
    "uncounted": f"at most {100 * work_class.UNCOUNTED_SHARE:g} % of the limit at a time",
    "fall": f"falls by at most {100 * estimator.STEP_DOWN:g} % in a period",
    "rise": f"rises by at most {100 * estimator.STEP_UP:g} %, or twofold",
    "patience": f"the classes with {100 * estimator.PATIENCE_SHARE:g} % of the arrivals",
    "learned from": f"its last {work_class.EASY_SAMPLES} responses without load",
    "learned at least": f"at least {work_class.LEARNED_SLO_MIN_S:g} s.",
    "shared rise": f"rises by at most {100 * (work_class.SHARED_RISE - 1):.0f} % in a period",
    "body timeout": f"for `body_timeout_s`, {LIMIT.body_timeout_s:g} s,",
    "least rate": f"one more second for each {MIN_BYTES_PER_S:g} bytes",
    "buffer": f"{BUFFER_BYTES // 1024} KiB of it have arrived",
    "idle": f"`slot_idle_s`, {LIMIT.slot_idle_s:g} s",
    "paused": f"`paused_max` paused requests, {LIMIT.paused_max},",
}
"""Constant -> its text on the page."""

WORDED = {
    "quiet share": (QUIET_SHARE, 0.25, "at most a quarter of the limit was in flight"),
    "quiet": (QUIET_MIN, 2, "or two requests"),
    "uncounted": (work_class.UNCOUNTED_MIN, 3, "at least three"),
    "filled": (estimator.SLOTS_PER_FILLED, 2.0, "no more than twice the slots that it filled"),
    "by work": (estimator.BY_WORK, 0.4, "four tenths of the limit follow the requests in flight"),
    "up fast": (estimator.STEP_UP_FAST, 1.0, "twofold while responses take less than half of their aim"),
    "learned": (work_class.LEARNED_SLO_FACTOR, 4.0, "four times the 95th percentile"),
    "learned needs": (work_class.EASY_SAMPLES_MIN, 5, "It needs five of them"),
    "extra slots": (estimator.EVEN_MAX, 3.0, "at most three slots and less on slow services"),
    "crash": (CRASH_MIN, 8, "more than half of at least eight requests in flight fail at once"),
    "after a crash": (CRASH_SHARE, 0.5, "half of the requests after a crash"),
    "head only": (HEAD_OBJECTIVES, 4.0, "before the first part only after four objectives"),
    "turns": (RETRY_SHARE, 0.5, "at half of the measured service rate"),
    "wait": (LIMIT.wait_budget, 0.25, "a quarter of its objective (`wait_budget`)"),
}
"""Constant -> its value, and the page's words for it."""


@pytest.mark.parametrize("name", PRINTED)
def test_the_page_states_the_constant(name: str) -> None:
    assert PRINTED[name] in PAGE


@pytest.mark.parametrize("name", WORDED)
def test_the_page_has_words_for_the_constant(name: str) -> None:
    value, worded, phrase = WORDED[name]
    assert value == worded
    assert phrase in PAGE


def test_a_turn_is_at_most_a_minute_away_with_its_jitter() -> None:
    assert 50.0 < RETRY_MAX_S * (1.0 + SETTINGS.responses.retry_jitter) <= 60.0
    assert "It is at most a minute with its jitter" in CLIENTS


def test_every_setting_of_the_table_by_symptom_exists() -> None:
    rows = (ROOT / "docs" / "admission-control.md").read_text(encoding="utf-8")
    table = rows.partition("| symptom or goal |")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[1] for row in table.splitlines()[2:]]
    named = {name.lower() for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert {"slo_s", "slot", "slot_idle_s", "body_timeout_s", "paused_max", "fairness", "workers"} <= named
    assert named <= settings_table().keys() | {"slot"}


def test_the_page_names_every_use_of_a_slot_that_is_not_the_default() -> None:
    assert set(re.findall(r'`slot="(\w+)"`', PAGE)) == set(SlotUse) - {SlotUse.REQUEST}


def test_the_page_names_measurements_that_the_snapshot_has() -> None:
    named = (
        "work_classes",
        "slo_s",
        "slo_learned",
        "budget_s",
        "paused",
        "retry_backlog_s",
        "slo_unreachable",
    )
    assert [name for name in named if f"`{name}`" not in PAGE] == []
    assert set(named) <= set(ConcurrencyView.__dataclass_fields__)


def test_the_printed_response_to_a_slow_body_is_sent() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    builder = ResponseBuilder(Settings().responses, PROBLEM)
    asyncio.run(builder.send_body_timeout({"http_version": "1.1"}, send))
    assert sent[1]["body"].decode() in CLIENTS


def test_the_picture_shows_every_state_of_the_page() -> None:
    picture = (ROOT / "docs" / "slot-states.svg").read_text(encoding="utf-8")
    (states,) = re.findall(r"!\[States of a request: ([^\]]+)\]\(slot-states.svg\)", PAGE)
    shown = re.findall(r">([^<]+)</text>", picture)
    assert [state for state in states.split(", ") if state not in shown] == []
    assert "http" not in picture.replace('xmlns="http://www.w3.org/2000/svg"', "")
