"""The metrics of limits in tokens."""

from __future__ import annotations

from autoglm_throttle.limiting.token_limits import TokenCounts
from autoglm_throttle.observe.metric import PREFIX
from autoglm_throttle.testing import throttle_for_tests
from tests.observe.scraping import loaded, scraped, states, value

NAMES = ("limited_tokens", "token_streams_ended", "token_estimates")


def test_without_token_limits_nothing_is_exported_of_them() -> None:
    families = scraped(throttle_for_tests())
    assert [families[PREFIX + name].samples for name in NAMES] == [[], [], []]


def test_counts_of_tokens_are_exported() -> None:
    counts = TokenCounts(reserved=100, ended=3)
    counts.record(60, 50)
    counts.record(40, 45)
    throttle = loaded(token_counts=counts)
    found = {"reserved": 100, "settled": 95, "given_back": 10, "overrun": 5}
    assert states(throttle, "limited_tokens") == found
    assert value(throttle, "token_streams_ended_total") == 3


def test_estimates_are_exported_by_the_range_of_their_ratio() -> None:
    counts = TokenCounts()
    for reserved in (0, 50, 51, 110, 111, 201):
        counts.record_estimate("input", reserved, 100)
    counts.record_estimate("output", 5, None)
    counts.record_estimate("output", 5, 0)
    samples = scraped(loaded(token_counts=counts))[PREFIX + "token_estimates"].samples
    found = {(each.labels["kind"], each.labels["ratio"]): each.value for each in samples}
    assert [found["input", ratio] for ratio in ("0.5", "0.9", "1.1", "2", "+Inf")] == [2, 1, 1, 1, 1]
    assert {found["output", ratio] for ratio in ("0.5", "0.9", "1.1", "2", "+Inf")} == {0}


def test_snapshot_is_a_copy() -> None:
    throttle = throttle_for_tests(tokens_limit="100/minute")
    before = throttle.snapshot().token_counts
    limits = throttle.admission.parts.token_limits
    assert limits is not None
    limits.counts.record(5, 7)
    limits.counts.record_estimate("input", 5, 7)
    assert before == TokenCounts()
    assert throttle.snapshot().token_counts == limits.counts
