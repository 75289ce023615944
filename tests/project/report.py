"""The order of a run, how processes share it, and what it says at its end of what this machine cannot run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

REASONS = ("GPU", "C compiler", "valgrind", "browser", "Prometheus", "nginx", "writable cgroup")
"""What a machine may lack. A test skipped for any other reason fails the run: it would be forgotten."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    """Give out whole modules, or the groups of the mark ``xdist_group``.

    What a module starts is started once, and the bookkeeping of xdist, which looks after every test at every
    unit that was given out, takes a second instead of a minute.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    scheduling = LoadGroupScheduling(config, log)
    group: Callable[[str], str] = scheduling._split_scope

    def unit(nodeid: str) -> str:
        return nodeid.partition("::")[0] if group(nodeid) == nodeid else group(nodeid)

    scheduling._split_scope = unit
    return scheduling


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups of modules first, so that no process waits for one at the end; then units, then servers."""
    items.sort(
        key=lambda item: (
            item.get_closest_marker("xdist_group") is None,
            item.get_closest_marker("server") is not None,
        )
    )


def skipped(reporter: pytest.TerminalReporter) -> Counter[str]:
    """Return how many tests were skipped for each reason."""
    said: Counter[str] = Counter()
    for report in reporter.getreports("skipped"):
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        said[told.removeprefix("Skipped: ")] += 1
    return said


def allowed(reason: str) -> bool:
    """Return whether the machine may lack this."""
    return any(word in reason for word in REASONS)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a run with a test skipped for another reason; a process of several has no reporter, and no say."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or exitstatus != pytest.ExitCode.OK:
        return
    if not all(map(allowed, skipped(reporter))):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("not run on this machine", sep="-")
    counted = skipped(terminalreporter)
    for reason, count in sorted(counted.items()):
        failed = f" - FAILED: a test is skipped for want of one of these alone: {', '.join(REASONS)}"
        verdict = "" if allowed(reason) else failed
        terminalreporter.write_line(f"{count} {'test' if count == 1 else 'tests'}: {reason}{verdict}")
    if not counted:
        terminalreporter.write_line("nothing: every test that was asked for ran")
