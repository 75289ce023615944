"""From recorded requests to a load."""

from __future__ import annotations

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import TargetUrl
from autoglm_throttle.traffic.generator.target import encoder
from autoglm_throttle.traffic.record import RecordedRequest
from autoglm_throttle.traffic.replay import ReplayOptions, Selection, prepare
from autoglm_throttle.traffic.replay.comparison import client_outcome
from autoglm_throttle.types import Priority


def client_outcome_of(status: int, degraded: int) -> str:
    return client_outcome(status, degraded=bool(degraded))


def entry(t_s: float, serial: int = 0, **fields: object) -> RecordedRequest:
    known: dict[str, object] = {"method": "POST", "target": "/v1/predict"}
    return RecordedRequest(t_s=t_s, id=serial, **(known | fields))  # type: ignore[arg-type]


def test_equal_requests_share_a_kind_and_callers_keep_their_text() -> None:
    made = prepare(
        [
            entry(1.0, client="aaaa", headers=(("accept", "a"),)),
            entry(2.0, client="bbbb", headers=(("accept", "b"),)),
            entry(2.5, client="aaaa", headers=(("accept", "a"),), status=429),
        ]
    ).load
    assert list(made.plan.offsets) == [0.0, 1.0, 1.5]
    assert list(made.plan.kinds) == [0, 1, 0]
    assert [made.client(number) for number in made.plan.clients] == ["aaaa", "bbbb", "aaaa"]
    assert len(made.requests) == 2
    assert made.plan.names == ("replay",)
    assert made.plan.duration_s == 1.5


def test_each_request_without_a_client_is_a_client_of_its_own() -> None:
    entries = [entry(0.0), entry(1.0, client="aaaa"), entry(2.0), entry(3.0, client="aaaa")]
    load = prepare(entries, Selection(loops=2)).load
    texts = [load.client(number) for number in load.plan.clients]
    assert texts == ["unknown-0", "aaaa", "unknown-2", "aaaa"] * 2


@pytest.mark.parametrize(
    ("target", "masked"),
    [
        ("/users/*", True),
        ("/users/*/orders", True),
        ("/a;*/b", True),
        ("/a?*=*", True),
        ("/a?page=1&*", True),
        ("/a?page=1", False),
        ("/a*b?q=*", False),
        ("*", False),
    ],
)
def test_masked_targets_are_noted(target: str, *, masked: bool) -> None:
    notes = prepare([entry(0.0, method="OPTIONS", target=target), entry(1.0)]).notes
    assert [note.partition(" where ")[0] for note in notes] == ["1 requests have *"] * masked


def test_every_loop_repeats_clients_and_requests() -> None:
    entries = [entry(0.0, client="a", priority="high"), entry(1.0, client="b", priority="low", target="/x")]
    plan = prepare(entries, Selection(loops=3, duration_s=5.0)).load.plan
    assert list(plan.offsets) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert list(plan.kinds) == [0, 1, 0, 1, 0]
    assert list(plan.clients) == [0, 1, 0, 1, 0]
    assert list(plan.priorities) == [0, 2, 0, 2, 0]
    assert len(plan.segments) == 5


@pytest.mark.parametrize(
    ("fields", "counts_as"),
    [
        ({"priority": "high"}, Priority.HIGH),
        ({"priority": "", "headers": (("x-priority", " Low "),)}, Priority.LOW),
        ({"priority": "mid", "headers": (("x-priority", "high"),)}, Priority.MID),
        ({"priority": "urgent", "headers": (("x-priority", "*"),)}, Priority.MID),
        ({}, Priority.MID),
    ],
)
def test_assigned_priority_precedes_the_stated_one(fields: dict[str, object], counts_as: Priority) -> None:
    load = prepare([entry(0.0, 0, **fields)]).load
    assert Priority(load.plan.priorities[0]) is counts_as
    assert load.requests[0].priority is False
    assert load.requests[0].headers == fields.get("headers", ())


def test_assigned_priority_is_sent_only_with_the_option() -> None:
    entries = [
        entry(0.0, priority="low"),
        entry(1.0, priority="low", headers=(("x-importance", "low"),)),
        entry(2.0),
        entry(3.0, priority="urgent"),
    ]
    load = prepare(entries, options=ReplayOptions(priority_header="x-importance", decided=True)).load
    assert [load.requests[kind].priority for kind in load.plan.kinds] == [True, False, False, False]


def test_fields_of_the_connection_are_not_sent_again() -> None:
    headers = (
        ("content-length", "999"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("host", "elsewhere"),
        ("expect", "100-continue"),
        ("user-agent", "somebody"),
    )
    load = prepare([entry(0.0, headers=headers, body=b"ab", body_len=2)]).load
    assert load.requests[0].headers == (("user-agent", "somebody"),)
    head = encoder(load, TargetUrl(port=80))(0).decode()
    assert "content-length: 2\r\n" in head
    assert "999" not in head


def test_missing_bodies_are_counted_or_filled() -> None:
    entries = [entry(0.0, body_len=3), entry(1.0, body=b"xy", body_len=2), entry(2.0), entry(3.0, body_len=1)]
    with pytest.raises(
        TrafficError, match=r"2 requests have a body that was not recorded \(2 POST; .*give one with --body"
    ):
        prepare(entries)

    def bodies(fill: ReplayOptions) -> list[bytes]:
        load = prepare(entries, None, fill).load
        return [load.requests[kind].body for kind in load.plan.kinds]

    assert bodies(ReplayOptions(fill=True)) == [b"   ", b"xy", b"", b" "]
    assert bodies(ReplayOptions(body=b"{}")) == [b"{}", b"xy", b"", b"{}"]


def test_missing_bodies_are_reported_with_reasons() -> None:
    entries = [
        entry(0.0, body_len=3, body_sha256="0" * 64),
        entry(1.0, body_len=3, decision="limited", status=429),
        entry(2.0, method="PUT", body_len=9, decision="admitted", status=200),
        entry(3.0, method="GET"),
    ]
    with pytest.raises(TrafficError) as told:
        prepare(entries)
    assert str(told.value) == (
        "3 requests have a body that was not recorded (2 POST, 1 PUT; 1 as a hash only, "
        "1 not recorded or not read to the end, 1 rejected before the body was read): "
        "give one with --body FILE, or --fill for spaces of the same length"
    )


def test_a_body_is_filled_one_way_and_not_without_end() -> None:
    with pytest.raises(TrafficError, match="not both"):
        ReplayOptions(body=b"", fill=True)
    with pytest.raises(TrafficError, match="is not filled"):
        prepare([entry(0.0, body_len=10**15)], None, ReplayOptions(fill=True))


def test_bodies_of_skipped_requests_need_no_fill() -> None:
    entries = [entry(0.0), entry(5.0, body_len=3)]
    assert len(prepare(entries, Selection(to_s=5.0)).load.plan) == 1


def test_empty_selection_is_reported() -> None:
    with pytest.raises(TrafficError, match="nothing to replay"):
        prepare([entry(0.0)], Selection(from_s=1.0))


def test_recorded_decisions_are_kept_with_the_load() -> None:
    entries = [
        entry(0.0, status=200, decision="admitted"),
        entry(1.0, status=429, decision="limited"),
        entry(2.0, status=503, decision="rejected"),
        entry(3.0, status=200, decision="degraded"),
        entry(4.0, status=200, decision="exempt"),
        entry(5.0, status=429),
        entry(6.0, status=503),
        entry(7.0, status=404),
        entry(8.0),
    ]
    recorded = prepare(entries).recorded
    assert recorded is not None
    assert list(recorded.statuses) == [200, 429, 503, 200, 200, 429, 503, 404, 0]
    outcomes = map(client_outcome_of, recorded.statuses, recorded.degraded)
    assert list(outcomes) == [
        *("admitted", "limited", "shed", "degraded", "admitted", "limited", "shed", "admitted", "none")
    ]
