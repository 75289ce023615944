"""The parser of exporter texts: accepted and rejected texts, and its speed on any text."""

from __future__ import annotations

import contextlib
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from autoglm_throttle.gpu.scrape.exposition import MOST_LINES, MalformedExpositionError, Series, parse
from tests.gpu.exporter_texts import TEXTS, series, text

NAMES = st.sampled_from(["le", "_", "Hostname", "GPU_I_ID", "a1"])
VALUES = st.text(max_size=20)
NUMBERS = st.floats(allow_nan=False)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@given(st.dictionaries(NAMES, VALUES, max_size=4), NUMBERS)
def test_any_label_value_round_trips(labels: dict[str, str], number: float) -> None:
    body = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    assert parse(f"# a comment\nname{{{body}}} {number!r}\n") == [Series("name", labels, number)]


@given(VALUES, st.floats(-1e9, 1e9))
def test_prometheus_client_output_is_read(value: str, number: float) -> None:
    registry = CollectorRegistry()
    Gauge("load", "of it", ["who"], registry=registry).labels(value).set(number)
    Counter("seen", "of it", registry=registry).inc(2, {"trace": "a b"})
    for written, openmetrics in (
        (generate_latest(registry), False),
        (generate_openmetrics(registry), True),  # type: ignore[no-untyped-call]
    ):
        found = {one.name: one for one in parse(written.decode(), openmetrics=openmetrics)}
        assert found["load"] == Series("load", {"who": value}, number)
        assert found["seen_total"].value == 2.0


@pytest.mark.parametrize(
    "name", sorted(path.stem for path in TEXTS.iterdir() if "openmetrics" not in path.stem)
)
def test_parser_agrees_with_prometheus_client(name: str) -> None:
    """Names differ: it appends ``_total`` to counters without it, such as those of dcgm-exporter."""
    theirs = [sample for family in text_string_to_metric_families(text(name)) for sample in family.samples]
    read = [(one.name.removesuffix("_total"), dict(one.labels), one.value) for one in series(name)]
    expected = [(one.name.removesuffix("_total"), one.labels, float(one.value)) for one in theirs]
    assert sorted(map(repr, read)) == sorted(map(repr, expected))


@given(st.text())
def test_any_text_is_read_or_rejected(texts: str) -> None:
    with contextlib.suppress(MalformedExpositionError):
        parse(texts)
    with contextlib.suppress(MalformedExpositionError):
        parse(texts, openmetrics=True)


@given(st.integers(1, len(text("vllm_1")) - 1))
def test_truncated_text_is_rejected_or_ends_with_whole_line(at: int) -> None:
    whole = text("vllm_1")
    if whole[at - 1] == "\n":
        assert parse(whole[:at]) == parse(whole)[: len(parse(whole[:at]))]
    else:
        with pytest.raises(MalformedExpositionError, match="ends in the middle of a line"):
            parse(whole[:at])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a 1", Series("a", {}, 1.0)),
        ("\t a:b_C9  1e3 \t", Series("a:b_C9", {}, 1000.0)),
        ("a{} 1", Series("a", {}, 1.0)),
        ("a { } 1", Series("a", {}, 1.0)),
        ('a{b="c",}1 -500', Series("a", {"b": "c"}, 1.0, -0.5)),
        (
            'a{ b = "}, c=\\"d\\" #" , e="" } +Inf 1500',
            Series("a", {"b": '}, c="d" #', "e": ""}, math.inf, 1.5),
        ),
        ('a{b="\\t\\\\n"} -Inf', Series("a", {"b": "\\t\\n"}, -math.inf)),
        ('a{b="\u2028\x85\x0b"} 1', Series("a", {"b": "\u2028\x85\x0b"}, 1.0)),
    ],
)
def test_a_line_is_read(line: str, expected: Series) -> None:
    assert parse(line + "\n") == [expected]


def test_nan_is_a_value() -> None:
    (one,) = parse("a NaN\n")
    assert math.isnan(one.value)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a b",
        "a 1 x",
        "a 1 1.5",
        "a 1_0",
        "a \u0661",
        "a\u0661 1",
        "9a 1",
        "{} 1",
        '{a="b"} 1',
        '{"a"} 1',
        'a{"b"="c"} 1',
        'a{"b"} 1',
        'a{b="c"',
        'a{b="c} 1',
        "a{b=c} 1",
        'a{b="c" d="e"} 1',
        'a{b="c",b="d"} 1',
        'a{b="c",,} 1',
        'a{9="c"} 1',
        'a 1 # {t="x"} 1',
        "<html>",
        "a 1 2 3",
    ],
)
def test_malformed_line_is_rejected_and_named(line: str) -> None:
    with pytest.raises(MalformedExpositionError, match="line 2 is no series"):
        parse(f"a 1\n{line}\na 2\n")


def test_a_complaint_is_short_and_harmless() -> None:
    with pytest.raises(MalformedExpositionError) as caught:
        parse("\x1b[31m" + "y" * 300 + "\n")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 120


def test_openmetrics_counts_seconds_and_may_have_exemplars() -> None:
    found = {one.name: one for one in series("vllm_openmetrics")}
    assert found["vllm:num_requests_running"] == Series(
        "vllm:num_requests_running", {"model_name": "m"}, 3.0, 1763759000.25
    )
    assert found["vllm:prompt_tokens_total"].value == 17.0
    assert found["vllm:prompt_tokens_total"].at_s is None


def test_openmetrics_ends_with_its_mark() -> None:
    assert parse("a 1\n# EOF", openmetrics=True) == parse("a 1\n# EOF\n", openmetrics=True)
    for texts in ("", "a 1\n", "# EOF\na 1\n", "a 1\n# EO"):
        with pytest.raises(MalformedExpositionError, match="does not end with # EOF"):
            parse(texts, openmetrics=True)


def test_empty_text_has_no_samples() -> None:
    assert parse("") == parse("\n\n# only words\n") == []


@pytest.mark.parametrize(
    "line",
    [
        'a{b="' + "\\" * 100_001 + '"} 1',
        "a{" + 'b="c",' * 20_000,
        'a{"' + "x" * 100_000,
        "a" + " " * 100_000 + "b",
        "{" * 100_000,
        'a{b="' + '"' * 100_001 + '"} 1',
        "a 1 " + "1" * 4000,
    ],
)
def test_no_line_makes_it_slow(line: str) -> None:
    started = time.thread_time()
    with contextlib.suppress(MalformedExpositionError):
        parse(line + "\n")
    assert time.thread_time() - started < 10.0, "milliseconds; minutes where it is quadratic"


def test_text_with_too_many_lines_is_rejected_unread() -> None:
    assert len(parse("a 1\n" * MOST_LINES)) == MOST_LINES
    with pytest.raises(MalformedExpositionError, match="more than 100000 lines"):
        parse("no series\n" + "\n" * MOST_LINES)
