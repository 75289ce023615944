"""Responses as clients see them, read by an RFC 9651 parser and compared with the decision."""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autoglm_throttle.asgi.dialects import STATUS
from autoglm_throttle.asgi.responses import (
    EXPOSED_FIELDS,
    LEGACY_NAMES,
    MAX_CACHED_BODIES,
    MAX_CACHED_TEMPLATES,
    ResponseBuilder,
)
from autoglm_throttle.limiting.decisions import Usages, decision_of
from autoglm_throttle.limiting.user_limits import LimitSets, UserLimits
from autoglm_throttle.settings.groups.callers import HeaderStyle, ResponseSettings
from autoglm_throttle.types import Decision, Demand, LimitStatus, Reason, UserLimit
from tests.asgi.structured_fields import Item, read_list

ALL_STYLES = (HeaderStyle.IETF, HeaderStyle.LEGACY, HeaderStyle.NONE)


def fields_of(tested: ResponseBuilder, verdict: Usages | Decision) -> list[tuple[bytes, bytes]]:
    start = {"type": "http.response.start", "status": 200, "headers": []}
    fields: list[tuple[bytes, bytes]] = tested.add_fields(start, verdict)["headers"]
    assert start["headers"] == [], "the app's own message is not changed"
    return fields


def builder(**settings: Any) -> ResponseBuilder:
    return ResponseBuilder(ResponseSettings(**settings))


def no_jitter(headers: HeaderStyle = HeaderStyle.AUTO) -> ResponseBuilder:
    return builder(headers=headers, retry_jitter=0.0)


def as_dict(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    names = [name.decode() for name, _ in fields]
    assert len(set(names)) == len(names), "each field once"
    return {name: value.decode("ascii") for name, (_, value) in zip(names, fields, strict=True)}


def limits_of(fields: list[tuple[bytes, bytes]]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """RateLimit-Policy and RateLimit, each as name -> parameters, in the same order."""
    found = dict(fields)
    policy, state = read_list(found[b"ratelimit-policy"]), read_list(found[b"ratelimit"])
    assert [name for name, _ in policy] == [name for name, _ in state]
    return dict(policy), dict(state)


def refused(
    reason: Reason = Reason.USER,
    detail: str = "user:user-60s",
    policy: str = "user-60s",
    wait: float = 12.3,
    window_s: int = 60,
) -> Decision:
    return Decision(False, reason, detail, policy, 100, 0, wait, wait, window_s)


# --- the reader itself ---


def test_reader_accepts_valid_lists() -> None:
    expected: list[Item] = [("user-60s", {"q": 100, "w": 60}), ('a"b', {}), (-7, {"x": True})]
    assert read_list(b'"user-60s";q=100;w=60, "a\\"b" ,\t-7; x') == expected
    assert read_list(b"") == []


@pytest.mark.parametrize(
    "field",
    [
        b'"a",',
        b'"a" "b"',
        b'"a;q=1',
        b'"a";Q=1',
        b'"a";q=',
        b'"a";q=1.5',
        b"token",
        b'"\x00"',
        b'"a\\x"',
        b"1" * 16,
    ],
)
def test_reader_rejects_malformed_lists(field: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_list(field)


# --- admitted answers ---

states = st.builds(
    lambda window_s, limit, left, reset: (window_s, limit, min(left, limit), reset),
    st.integers(1, 31_622_400),
    st.integers(1, 16_777_215),
    st.integers(0, 16_777_215),
    st.floats(0.0, 31_622_400.0),
)


@given(drawn=st.lists(states, min_size=1, max_size=8, unique_by=lambda state: state[0]))
def test_the_fields_parse_and_agree_with_the_decision(drawn: list[tuple[int, int, int, float]]) -> None:
    items = [
        LimitStatus(f"user-{window_s}s", limit, window_s, left, reset)
        for window_s, limit, left, reset in drawn
    ]
    first, *rest = items
    decision = Decision(
        True,
        Reason.OK,
        "",
        first.name,
        first.limit,
        first.remaining,
        0.0,
        first.reset_s,
        first.window_s,
        tuple(rest),
    )
    policy, state = limits_of(fields_of(builder(), decision))
    assert list(state) == [item.name for item in items]
    for item in items:
        assert policy[item.name] == {"q": item.limit, "w": item.window_s}
        assert state[item.name] == {"r": item.remaining, "t": math.ceil(item.reset_s)}


@pytest.mark.parametrize("style", ALL_STYLES)
def test_where_no_user_limit_applies_there_is_nothing_to_say(style: HeaderStyle) -> None:
    assert fields_of(builder(headers=style), Decision(True, Reason.OK)) == []


def test_fields_agree_with_window_decisions() -> None:
    limits = (UserLimit("user-60s", 3, 60),)
    windows = UserLimits(LimitSets([limits] * 3, by_plan={}, by_route={}, address_factor=2.0), 10)
    answers, now = no_jitter(), 100.0
    demand = Demand(user="ann", address="host")
    left = []
    for _ in range(3):
        decision = windows.hit(demand, now)
        _, state = limits_of(fields_of(answers, decision))
        left.append((state["user-60s"]["r"], state["address-60s"]["r"]))
        now += 0.25
    assert left == [(2, 5), (1, 4), (0, 3)]
    refusal = decision_of(windows.hit(demand, now))
    _, fields, _ = answers.rejection(refusal)
    wait = int(dict(fields)[b"retry-after"])
    assert (refusal.retry_after_s, wait) == (59.25, 60)
    assert decision_of(windows.hit(demand, now + wait)).allowed


def test_legacy_adds_the_old_names() -> None:
    decision = Decision(True, Reason.OK, "", "user-60s", 100, 41, 0.0, 7.2, 60)
    assert as_dict(fields_of(builder(headers="legacy"), decision)) == {
        "ratelimit-policy": '"user-60s";q=100;w=60',
        "ratelimit": '"user-60s";r=41;t=8',
        "x-ratelimit-limit": "100",
        "x-ratelimit-remaining": "41",
        "x-ratelimit-reset": "8",
    }
    _, fields, _ = no_jitter(HeaderStyle.LEGACY).rejection(refused(wait=12.3))
    old = as_dict(fields)
    assert [old[name] for name in LEGACY_NAMES] == ["100", "0", "13"]
    too_large = Decision(
        False, Reason.TOO_LARGE, "too_large:user-60s", "user-60s", 100, 40, math.inf, 7.2, 60
    )
    _, fields, _ = no_jitter(HeaderStyle.LEGACY).rejection(too_large)
    assert as_dict(fields)["x-ratelimit-reset"] == "0", "waiting does not help"


def test_none_says_only_when_to_come_back() -> None:
    answers = builder(headers="none")
    assert fields_of(answers, Decision(True, Reason.OK, "", "user-60s", 100, 41, 0.0, 7.2, 60)) == []
    _, fields, _ = answers.rejection(refused())
    assert set(as_dict(fields)) == {"retry-after", "retry-after-ms", "content-type", "content-length"}


# --- refused answers ---

REFUSALS = [
    (refused(Reason.RATE, "rate:low", "low", window_s=0), 429, "quota-exceeded"),
    (refused(Reason.USER), 429, "quota-exceeded"),
    (refused(Reason.GPU, "gpu:overload", "gpu", window_s=0), 503, "temporary-reduced-capacity"),
    (refused(Reason.GPU, "gpu:lost", "gpu", window_s=0), 503, "temporary-reduced-capacity"),
    (refused(Reason.GPU, "gpu:memory", "gpu", window_s=0), 503, "temporary-reduced-capacity"),
    (refused(Reason.STORE, "store:timeout", "store", window_s=0), 503, "temporary-reduced-capacity"),
    (refused(Reason.QUEUE, "queue:slow", "queue", window_s=0), 503, "temporary-reduced-capacity"),
    (refused(Reason.QUEUE, "queue:timeout", "queue", window_s=0), 503, "temporary-reduced-capacity"),
    (refused(Reason.QUEUE, "queue:full", "queue", window_s=0), 503, "temporary-reduced-capacity"),
    (refused(Reason.QUEUE, "queue:cap", "queue", window_s=0), 503, "temporary-reduced-capacity"),
    (refused(Reason.QUEUE, "queue:else", "queue", window_s=0), 503, "temporary-reduced-capacity"),
]


def test_every_rejection_reason_has_a_status() -> None:
    assert set(STATUS) == set(Reason) - {Reason.OK}


@pytest.mark.parametrize(("decision", "status", "kind"), REFUSALS)
def test_a_body_is_a_problem_with_all_its_members(decision: Decision, status: int, kind: str) -> None:
    answered, fields, body = no_jitter().rejection(decision)
    problem = json.loads(body)
    assert answered == problem["status"] == status
    assert problem["type"] == f"https://iana.org/assignments/http-problem-types#{kind}"
    assert problem["title"] == {429: "Too Many Requests", 503: "Service Unavailable"}[status]
    assert problem["violated-policies"] == [decision.policy]
    assert problem["reason"] == decision.detail
    assert problem["retry_after_s"] == 12.3
    assert problem["detail"].endswith("try again in 13 s.")
    assert problem["detail"].count(".") == 1, "one sentence"
    assert set(problem) == {
        *("type", "title", "status", "detail", "violated-policies", "reason", "retry_after_s")
    }
    headers = as_dict(fields)
    assert headers["content-type"] == "application/problem+json"
    assert headers["content-length"] == str(len(body))
    assert headers["retry-after"] == "13"
    assert headers["retry-after-ms"] == "12300"


def test_queue_rejection_states_its_detail() -> None:
    answers = no_jitter()
    said = {
        detail: json.loads(
            answers.rejection(refused(Reason.QUEUE, f"queue:{detail}", "queue", window_s=0))[2]
        )
        for detail in ("slow", "timeout", "full", "cap", "else")
    }
    sentences = {detail: problem["detail"] for detail, problem in said.items()}
    assert sentences == {
        "slow": "The request would wait too long in the queue; try again in 13 s.",
        "timeout": "The request timed out in the queue; try again in 13 s.",
        "full": "The queue is full; try again in 13 s.",
        "cap": "The concurrency limit is reached; try again in 13 s.",
        "else": "The service is busy; try again in 13 s.",
    }


@pytest.mark.parametrize(("decision", "status", "kind"), REFUSALS)
@pytest.mark.parametrize("style", ALL_STYLES)
def test_field_names_are_lower_case_and_known(
    decision: Decision, status: int, kind: str, style: HeaderStyle
) -> None:
    _, fields, _ = builder(headers=style).rejection(decision)
    for name in as_dict(fields):
        assert re.fullmatch(r"[a-z0-9-]+", name), "ASGI wants lower case"
        assert name in {*EXPOSED_FIELDS, *LEGACY_NAMES, "content-type", "content-length"}
    assert (b"ratelimit" in dict(fields)) is (decision.window_s > 0 and style is not HeaderStyle.NONE)


@given(
    wait=st.one_of(st.floats(1e-9, 1e-3), st.floats(1e-3, 300.0), st.integers(1, 120).map(float)),
    draw=st.floats(0.0, 1.0),
    jitter=st.floats(0.0, 1.0),
)
def test_retry_after_is_never_early_never_0_and_capped(wait: float, draw: float, jitter: float) -> None:
    answers = ResponseBuilder(ResponseSettings(retry_jitter=jitter), draw=lambda: draw)
    _, fields, body = answers.rejection(refused(wait=wait))
    headers = as_dict(fields)
    seconds, milliseconds = int(headers["retry-after"]), int(headers["retry-after-ms"])
    assert 1 <= seconds <= 120
    assert 1 <= milliseconds <= 120_000
    if wait <= 120.0:
        assert seconds >= wait
        assert milliseconds >= wait * 1000.0
        assert seconds <= max(1, math.ceil(wait * (1.0 + jitter))), "no later than the jitter allows"
        assert milliseconds <= math.ceil(wait * (1.0 + jitter) * 1000.0)
    assert (headers.get("x-should-retry") == "false") is (wait > 120.0)
    _, state = limits_of(fields)
    unspread = math.ceil(min(wait, 120.0)) or 1
    assert state["user-60s"] == {"r": 0, "t": unspread}
    problem = json.loads(body)
    assert wait - 1e-12 <= problem["retry_after_s"] <= wait + 0.001 + 1e-9, "never early either"
    assert f"in {unspread} s" in problem["detail"]


def test_without_jitter_whole_seconds_stay_whole() -> None:
    for wait, seconds in [
        (1.0, "1"),
        (1.0000001, "2"),
        (0.001, "1"),
        (59.0, "59"),
        (120.0, "120"),
        (1e9, "120"),
    ]:
        _, fields, _ = no_jitter().rejection(refused(wait=wait))
        assert as_dict(fields)["retry-after"] == seconds


# FIELD 30: 66 s for a window of 60 s
@pytest.mark.parametrize("style", [HeaderStyle.AUTO, HeaderStyle.LEGACY])
def test_jitter_lengthens_retry_after_only(style: HeaderStyle) -> None:
    answers = ResponseBuilder(ResponseSettings(retry_jitter=0.1, headers=style), draw=lambda: 1.0)
    _, fields, body = answers.rejection(refused(wait=60.0))
    sent = dict(fields)
    assert (sent[b"retry-after"], sent[b"retry-after-ms"]) == (b"66", b"66000")
    assert sent[b"ratelimit"].endswith(b";r=0;t=60")
    assert json.loads(body)["detail"].endswith("try again in 60 s.")
    assert json.loads(body)["retry_after_s"] == 60.0


def test_jitter_spreads_the_clients() -> None:
    draws = itertools.cycle([0.0, 0.25, 0.5, 0.75, 0.999])
    answers = ResponseBuilder(ResponseSettings(retry_jitter=0.1), draw=lambda: next(draws))
    waits = [int(as_dict(answers.rejection(refused(wait=100.0))[1])["retry-after"]) for _ in range(5)]
    assert waits == [100, 103, 105, 108, 110]
    assert (
        len({as_dict(builder().rejection(refused(wait=100.0))[1])["retry-after-ms"] for _ in range(20)}) > 1
    )


@pytest.mark.parametrize(
    ("limit", "text"), [(5, "at most 5."), (2.5, "at most 2.5."), (1_234_567, "at most 1234567.")]
)
def test_too_large_cost_states_the_largest_allowed(limit: float, text: str) -> None:
    decision = Decision(
        False, Reason.TOO_LARGE, "too_large:user-1s", "user-1s", limit, 2, math.inf, 0.25, window_s=1
    )
    status, fields, body = no_jitter().rejection(decision)
    headers, problem = as_dict(fields), json.loads(body)
    assert status == problem["status"] == 413
    assert "retry-after" not in headers
    assert "retry-after-ms" not in headers
    assert headers["x-should-retry"] == "false"
    assert (problem["type"], problem["title"]) == ("about:blank", "Content Too Large")
    assert problem["detail"].endswith(text)
    assert problem["reason"] == "too_large:user-1s"
    assert "retry_after_s" not in problem
    _, state = limits_of(fields)
    assert state["user-1s"] == {"r": 2, "t": 1}, "what is left is left"


def test_other_limits_are_listed_beside_the_exhausted_one() -> None:
    other = LimitStatus("user-3600s", 1000, 3600, 400, 1800.5)
    decision = Decision(False, Reason.USER, "user:user-60s", "user-60s", 100, 0, 12.3, 12.3, 60, (other,))
    policy, state = limits_of(no_jitter().rejection(decision)[1])
    assert policy == {"user-60s": {"q": 100, "w": 60}, "user-3600s": {"q": 1000, "w": 3600}}
    assert state == {"user-60s": {"r": 0, "t": 13}, "user-3600s": {"r": 400, "t": 1801}}


@given(user=st.text(min_size=4), address=st.ip_addresses().map(str))
def test_no_caller_stands_in_an_answer(user: str, address: str) -> None:
    limits = (UserLimit("user-60s", 1, 60),)
    windows = UserLimits(LimitSets([limits] * 3, by_plan={}, by_route={}, address_factor=1.0), 10)
    demand = Demand(user=f"<{user}>", address=f"<{address}>", group=f"<{address}>")
    texts = []
    for _ in range(2):
        decision = decision_of(windows.hit(demand, 0.0))
        if decision.allowed:
            texts += [b"%b: %b" % field for field in fields_of(builder(headers="legacy"), decision)]
        else:
            _, fields, body = builder(headers="legacy").rejection(decision)
            texts += [body, *[b"%b: %b" % field for field in fields]]
    assert b"<" not in b"\n".join(texts)


@given(name=st.text(max_size=30))
@example(name="100%d")
@example(name='a"b\\c\r\nd{policy}')
def test_no_name_breaks_the_fields(name: str) -> None:
    decision = Decision(True, Reason.OK, "", name, 100, 41, 0.0, 7.2, 60)
    policy, state = limits_of(fields_of(builder(), decision))
    assert list(policy.values()) == [{"q": 100, "w": 60}]
    assert list(state.values()) == [{"r": 41, "t": 8}]
    _, fields, body = builder().rejection(refused(policy=name, detail=f"user:{name}"))
    limits_of(fields)
    assert json.loads(body)["violated-policies"] == [name]


def test_prepared_texts_are_bounded_and_right_beyond_the_bound() -> None:
    answers = no_jitter()
    for number in range(max(MAX_CACHED_TEMPLATES, MAX_CACHED_BODIES) + 50):
        _, fields, body = answers.rejection(refused(policy=f"user-{number}s", detail=f"user:user-{number}s"))
        assert f'"user-{number}s"' in as_dict(fields)["ratelimit"]
        assert f'"user:user-{number}s"' in body.decode()
    assert (len(answers._templates), len(answers._bodies)) == (MAX_CACHED_TEMPLATES, MAX_CACHED_BODIES)


def test_a_prepared_text_is_the_same_again_and_follows_the_wait() -> None:
    answers = no_jitter()
    first, again = (answers.rejection(refused(wait=wait)) for wait in (12.3, 12.3))
    assert first == again
    for wait in (12.2, 12.9, 13.1, 1000.0, 12.3):
        problem = json.loads(answers.rejection(refused(wait=wait))[2])
        assert problem["retry_after_s"] == wait
        assert f"in {min(120, math.ceil(wait))} s" in problem["detail"]
    assert answers.rejection(refused()) == first


def test_one_name_under_two_limits_is_two_policies() -> None:
    answers = builder()
    for limit in (100, 50, 100):
        decision = Decision(True, Reason.OK, "", "user-60s", limit, 41, 0.0, 7.2, 60)
        policy, _ = limits_of(fields_of(answers, decision))
        assert policy["user-60s"]["q"] == limit
