"""The order of a run, and what it says at its end about what this machine could not run."""

from __future__ import annotations

from collections import Counter

import pytest

REASONS = ("GPU", "C compiler", "browser")
"""What a machine may lack. A test skipped for any other reason fails the run: it would be forgotten."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Units first, then what starts servers: a broken rule shows before the slow tests begin."""
    items.sort(key=lambda item: item.get_closest_marker("server") is not None)


def skipped(reporter: pytest.TerminalReporter) -> Counter[str]:
    """Return how many tests were skipped for each reason."""
    said: Counter[str] = Counter()
    for report in reporter.getreports("skipped"):
        told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        said[told.removeprefix("Skipped: ")] += 1
    return said


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or exitstatus != pytest.ExitCode.OK:
        return
    if any(not any(word in reason for word in REASONS) for reason in skipped(reporter)):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("not run on this machine", sep="-")
    counted = skipped(terminalreporter)
    for reason, count in sorted(counted.items()):
        allowed = any(word in reason for word in REASONS)
        verdict = (
            "" if allowed else f" - FAILED: a test is skipped for want of a {', a '.join(REASONS)} alone"
        )
        terminalreporter.write_line(f"{count} {'test' if count == 1 else 'tests'}: {reason}{verdict}")
    if not counted:
        terminalreporter.write_line("nothing: every test that was asked for ran")
