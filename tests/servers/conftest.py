"""The output of a server is part of the report of the test that failed with it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.servers.server import Server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    arguments: dict[str, Any] = getattr(item, "funcargs", {})
    server = arguments.get("server")
    if report.failed and isinstance(server, Server) and not server.stopped:
        report.sections.append(("output of the server", server.output))
    return report
