"""The section about the cost of guards is made from the kept record."""

import pytest

from benchmarks.breakers.part import breakers_part
from tests.benchmarks.breaker_record import record

pytestmark = pytest.mark.slow


def test_missing_figures_are_left_open() -> None:
    lines = breakers_part(record()).splitlines()
    assert lines[2] == (
        "| autoglm-throttle 0.0 | 200 ns | 200 ns | 200 ns | 200 ns | 0.3 µs, 0 commands | 1 | 1 | 0.10 s |"
    )
    compared = "924 ns (ours: 0.10 of it)"
    assert lines[3] == (
        f"| circuitbreaker 1.0 | {compared} | 924 ns | - | {compared} | - | 1 to 1000 | 1 | 0.10 s |"
    )
    assert lines[4] == (
        f"| purgatory 2.0 | {compared} | 924 ns | 924 ns | {compared} | 0.3 µs, 2 commands "
        "| 1 to 1000 | 1 | 0.10 s |"
    )


def test_features_of_ours_alone_are_described_in_sentences() -> None:
    text = breakers_part(record())
    assert "adds 300 ns to a closed call, with a listener 300 ns, with a static fallback 0.3 µs," in text
    assert (
        "one of 1000 tasks through in 100 of 100 rounds, one of 64 threads in 100 of 100, "
        "one of 100 tasks in two processes in 100 of 100." in text
    )
    assert "within 1.2 ms, at most 9.1; with a busy" in text
    assert "In 20 of 20 new processes the first call was rejected, after 9 ms at most." in text
    assert "a closed call takes: autoglm-throttle 0.4 µs, purgatory 0.4 µs and 100 % errors, pybr" in text
    assert "medians of 21 rounds, valkey-9.1.2: 2026-01-02, a processor, 2 cores, Python 3.11.7" in text


def test_a_round_in_which_not_one_got_through_is_not_hidden() -> None:
    found = record()
    found["half_open"]["autoglm_throttle"]["threads"]["most"] = 2
    text = breakers_part(found)
    assert "one of 64 threads in not all of 100" in text
    assert "| 1 | 1 to 2 | 0.10 s |" in text
