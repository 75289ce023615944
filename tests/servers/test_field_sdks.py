"""Looping callers of the openai and anthropic packages with default retries, at 20 times the capacity."""

from __future__ import annotations

import pytest

from benchmarks.socket_cases import sdk

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("load")]

CALLERS, CALL_S, SECONDS = 160, 0.1, 5.0
FAILED_AT_MOST = 0.2
"""0.9 where the time told does not know the crowd."""


@pytest.mark.parametrize("package", sorted(sdk.PACKAGES))
def test_retries_of_a_package_are_served_in_their_turn(package: str) -> None:
    found = sdk.run("uvicorn", package, CALLERS, SECONDS, CALL_S)
    assert found["failed_share"] <= FAILED_AT_MOST, found
    for kind in ("sync", "async"):
        assert found[kind]["served"] > found[kind]["failed"], found
    rejected = found["state"]["requests"]["shed"] + found["state"]["requests"]["limited"]
    assert rejected > 0, "nobody was rejected: the service was not overloaded"
