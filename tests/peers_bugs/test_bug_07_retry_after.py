"""Bug 7: Retry-After rounded to 0, absent or a date; superseded fields; names in upper case."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.peers_bugs.limiter import LIMIT, WINDOW_S, Make, Plain, ours

DRAFT_11 = {b"ratelimit", b"ratelimit-policy"}
SUPERSEDED = {b"ratelimit-limit", b"ratelimit-remaining", b"ratelimit-reset"}


def check(make: Make, passed_s: float = 0.0) -> None:
    subject = make()
    for _ in range(LIMIT):
        subject.ask()
    subject.clock.advance(passed_s)
    refused = subject.ask()
    assert refused.status == 429
    stated = refused.header("retry-after")
    assert stated is not None, "Retry-After is absent"
    assert stated.isdigit(), "Retry-After is no whole number"
    exact = WINDOW_S - passed_s
    assert exact <= int(stated) <= max(1, exact + 1), "Retry-After is not the wait"
    names = {name for name, _ in refused.fields}
    assert names == {name.lower() for name in names}, "names stand in upper case"
    assert not names & SUPERSEDED, "superseded fields"
    subject.clock.advance(int(stated))
    assert subject.ask().status == 200, "refused after the wait it was told"


class RoundedDown(Plain):
    def headers(self, wait: float) -> list[tuple[bytes, bytes]]:
        return [(b"retry-after", b"%d" % int(wait))]


class Absent(Plain):
    def headers(self, wait: float) -> list[tuple[bytes, bytes]]:
        return []


class Epoch(Plain):
    def headers(self, wait: float) -> list[tuple[bytes, bytes]]:
        return [(b"retry-after", b"%d" % (1_700_000_000 + wait))]


class UpperCase(Plain):
    def headers(self, wait: float) -> list[tuple[bytes, bytes]]:
        return [*super().headers(wait), (b"X-Limit", b"1")]


class Superseded(Plain):
    def headers(self, wait: float) -> list[tuple[bytes, bytes]]:
        return [*super().headers(wait), (b"ratelimit-reset", b"1")]


@pytest.mark.parametrize("make", [ours, Plain.subject])
@given(passed_s=st.sampled_from([0.0, 0.4, 1.0, 59.0, 59.001, 59.9999]))
def test_retry_after_is_the_wait_rounded_up(make: Make, passed_s: float) -> None:
    check(make, passed_s)


@pytest.mark.parametrize("planted", [RoundedDown, Absent, Epoch, UpperCase, Superseded])
def test_planted_header_is_found(planted: type[Plain]) -> None:
    with pytest.raises(AssertionError):
        check(planted.subject, 59.6)


def test_fields_are_those_of_the_current_draft() -> None:
    subject = ours()
    answers = [subject.ask() for _ in range(LIMIT + 1)]
    for answer in answers:
        assert {name for name, _ in answer.fields} >= DRAFT_11
        assert re.fullmatch(r'"user-60s";r=\d+;t=\d+', answer.header("ratelimit") or "")


@pytest.mark.parametrize("reason", ["rate", "gpu"])
def test_rejections_for_other_reasons_state_their_wait(reason: str) -> None:
    subject = ours(rate_mid_rps=0.5, burst_s=2) if reason == "rate" else ours(tiers="10:0", tier_samples=1)
    if reason == "gpu":
        throttle = subject.app.throttle  # type: ignore[attr-defined]
        throttle.gpu.utilization_pct = 50
        throttle.tick()
    subject.ask()
    refused = subject.ask()
    assert refused.status == (429 if reason == "rate" else 503)
    assert int(refused.header("retry-after") or 0) >= 1
