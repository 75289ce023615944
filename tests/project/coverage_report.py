"""Branch coverage of the pure modules, loaded with ``-p`` before anything of the package is imported.

The package's own pytest plugin is loaded while pytest starts, too early for what a coverage plugin measures.
The report stands above pytest's closing line, so that this line is the last one.

Each process of ``-n 2`` loads this file as early and measures into a file of its own; the one that hands
out the tests combines them and judges.

Following every line makes Python two to six times as slow, so only the tests of the pure modules are
followed. Those marked ``slow`` or ``untraced`` are not: they take the branches that shorter tests of the same
module have taken, many thousand times over.
"""

from __future__ import annotations

import io
import os
import tomllib
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

ROOT = Path(__file__).parents[2]
DATA = (ROOT / ".coverage").__fspath__()

FOLLOWED = (
    "tests/admission/",
    "tests/asgi/",
    "tests/cli/load_tests/",
    "tests/control/",
    "tests/gateway/",
    "tests/gpu/",
    "tests/limiting/",
    "tests/observe/",
    "tests/resilience/",
    "tests/store/",
    "tests/traffic/",
)
"""What tests the pure modules."""

UNTRACED = ("slow", "untraced")

WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this is one of several processes that run the tests; none may erase what another has measured."""


# The whole package is followed: if only some of its modules are, an exception that is thrown into a coroutine
# of the others is lost (Python 3.11).
measured = coverage.Coverage(data_file=DATA, config_file=str(ROOT / "pyproject.toml"))
if not WORKER:
    measured.erase()
measured.start()
OWNER = os.getpid()


class Tracing:
    """Whether lines are followed at the moment."""

    on = True

    def turn(self, on: bool) -> None:
        """Begin or stop to follow them."""
        if on is not self.on:
            self.on = on
            (measured.start if on else measured.stop)()


TRACING = Tracing()

REPORT = pytest.StashKey[str]()


def pure_files() -> list[str]:
    """Return the files of the modules that the contract ``pure`` names: all their branches are tested."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (contract for contract in contracts if contract["id"] == "pure")
    modules = [ROOT.joinpath(*name.split(".")) for name in pure["source_modules"]]
    return [f"{module}/*" if module.is_dir() else f"{module}.py" for module in modules]


def rendered() -> tuple[str, bool]:
    """Return the text of the report, and whether all pure modules are covered whole."""
    measured.combine(strict=False)
    text = io.StringIO()
    whole = measured.report(file=text, include=pure_files(), precision=2) == 100.0
    if not whole:
        text.write("\nThe pure modules are to be covered whole.\n")
    return text.getvalue(), whole


def is_followed(item: pytest.Item) -> bool:
    """Whether the branches that a test takes count."""
    return item.nodeid.startswith(FOLLOWED) and not any(map(item.get_closest_marker, UNTRACED))


def pytest_configure(config: pytest.Config) -> None:
    """Do not follow the process that only hands out tests."""
    TRACING.turn(on=not config.getoption("numprocesses", None))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    TRACING.turn(on=is_followed(item))
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    if os.getpid() != OWNER:
        return
    measured.stop()
    measured.save()
    if WORKER:
        return
    text, whole = rendered()
    session.config.stash[REPORT] = text
    if not whole and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("branch coverage", sep="-")
    terminalreporter.write_line(terminalreporter.config.stash.get(REPORT, "not measured"))
