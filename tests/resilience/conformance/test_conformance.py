"""Each row of the table, in each form that a call can have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.resilience import degrading, faces
from tests.resilience.conformance.calls import Calls
from tests.resilience.conformance.events import EventRunner
from tests.resilience.conformance.fallbacks import Fallbacks
from tests.resilience.conformance.fleet import Fleet
from tests.resilience.conformance.machine import Machine
from tests.resilience.conformance.over_http import Http
from tests.resilience.conformance.page import page
from tests.resilience.conformance.rule_parser import others, rules
from tests.resilience.conformance.streams import Streams
from tests.resilience.conformance.table import Row, rows

PAGE = Path(__file__).with_name("README.md")

BLOCKS = ("block", "async_block")
FUNCTIONS = ("function", "coroutine", "awaitable")
FORMS: dict[str, tuple[str, ...]] = {
    "machine": ("",),
    "calls": (*BLOCKS, *FUNCTIONS, *faces.STREAMS),
    "timed calls": (*BLOCKS, *FUNCTIONS),
    "values": FUNCTIONS,
    "streams": faces.STREAMS,
    "fallbacks": degrading.FACES,
    "http": ("sync", "asyncio"),
    "fleet": ("",),
}
STAGES: dict[str, Callable[[Row, str], EventRunner]] = {
    "machine": lambda line, _: Machine(rules(line.rules)),
    "calls": lambda line, form: Calls(rules(line.rules), others(line.rules), form),
    "timed calls": lambda line, form: Calls(rules(line.rules), others(line.rules), form),
    "values": lambda line, form: Calls(rules(line.rules), others(line.rules), form),
    "streams": lambda line, form: Streams(rules(line.rules), form),
    "fallbacks": lambda line, form: Fallbacks(rules(line.rules), others(line.rules), form),
    "http": lambda line, form: Http(rules(line.rules), others(line.rules), form),
    "fleet": lambda line, _: Fleet(rules(line.rules)),
}
CASES = [
    pytest.param(line, form, id=f"{line.part}: {line.name}" + (f" ({form})" if form else ""))
    for line in rows()
    for form in FORMS[line.part]
]


@pytest.mark.parametrize(("line", "form"), CASES)
def test_a_row(line: Row, form: str) -> None:
    assert STAGES[line.part](line, form).run_all(line.sequence()) == line.expected()


def test_the_page_is_made_from_the_table() -> None:
    notified = "run: python -m tests.resilience.conformance > tests/resilience/conformance/README.md"
    assert PAGE.read_text(encoding="utf-8") == page(), notified


def test_each_row_has_a_name_of_its_own() -> None:
    names = [(line.part, line.name) for line in rows()]
    assert len(names) == len(set(names)) >= 60
