"""The fixture ``attack``, and one line per attack at the end of a run that includes some.

A test names its attack, and attacks inside the block::

    def test_store_that_lies_admits_no_more(attack: Attack) -> None:
        with attack("Redis: a reply of the wrong type"):
            ...

    with attack("identity: a walker through a /48", degraded="each /64 is a caller of its own"):
        ...

An error inside the block is a break; otherwise the attack is held, or degraded by design if the test gives
the reason. ``times`` is the number of tries in the block. Blocks of one name, such as those of a parametrized
test, make one line: begin the name with its subject and a colon. It works under pytest-xdist too.
``tests/conftest.py`` loads the plugin, so all tests have the fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import pytest

PROPERTY = "attack"
HELD, DEGRADED, BROKEN = "held", "degraded by design", "broken"

Attack = Callable[..., AbstractContextManager[None]]
"""``attack(name, degraded="reason", times=5000)``, for annotations; the keywords are optional."""


@dataclass(slots=True)
class Tally:
    """Tries, blocks and broken blocks of one attack."""

    tried: int = 0
    blocks: int = 0
    broken: int = 0
    degraded: str = ""

    @property
    def result(self) -> str:
        """The result in words."""
        if self.broken:
            return f"{BROKEN} ({self.broken} of {self.blocks})" if self.blocks > 1 else BROKEN
        return f"{DEGRADED}: {self.degraded}" if self.degraded else HELD


@pytest.fixture
def attack(record_property: Callable[[str, object], None]) -> Attack:
    """Return a context manager for one attack, see the docstring of the module."""

    @contextmanager
    def attack(name: str, *, degraded: str = "", times: int = 1) -> Iterator[None]:
        try:
            yield
        except pytest.skip.Exception:
            raise
        except BaseException:
            record_property(PROPERTY, [name, times, False, degraded])
            raise
        record_property(PROPERTY, [name, times, True, degraded])

    return attack


def tally(reporter: pytest.TerminalReporter) -> dict[str, Tally]:
    """Return the tries of each attack, in the order of their names."""
    tallies: dict[str, Tally] = {}
    for status in ("passed", "failed", "xfailed"):
        for report in reporter.getreports(status):
            # Each phase of a test carries the properties.
            for key, value in getattr(report, "user_properties", ()) if report.when == "call" else ():
                if key == PROPERTY:
                    name, times, held, degraded = value
                    counted = tallies.setdefault(name, Tally())
                    counted.tried += times
                    counted.blocks += 1
                    counted.broken += not held
                    counted.degraded = degraded or counted.degraded
    return dict(sorted(tallies.items()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tallies = tally(terminalreporter)
    if not tallies:
        return
    terminalreporter.section("attacks", sep="-")
    for name, counted in tallies.items():
        terminalreporter.write_line(f"{name} [{counted.tried}] - {counted.result}")
    broken = sum(bool(counted.broken) for counted in tallies.values())
    degraded = sum(bool(counted.degraded) and not counted.broken for counted in tallies.values())
    held = len(tallies) - broken - degraded
    terminalreporter.write_line(
        f"{len(tallies)} attacks in {sum(counted.tried for counted in tallies.values())} cases:"
        f" {held} {HELD}, {degraded} {DEGRADED}, {broken} {BROKEN}"
    )
