"""An HTTP answer as a value: accepted and rejected arguments, and its text."""

from __future__ import annotations

import dataclasses

import pytest

from autoglm_throttle.resilience.http.answer import HttpAnswer


def test_an_answer_of_nothing_is_an_empty_200() -> None:
    answer = HttpAnswer()
    assert (answer.status, answer.headers, answer.body) == (200, (), b"")


def test_headers_come_as_a_mapping_or_as_pairs() -> None:
    pairs = (("link", "<a>"), ("link", "<b>"))
    assert HttpAnswer(headers=pairs).headers == pairs
    assert HttpAnswer(headers=iter(pairs)).headers == pairs
    assert HttpAnswer(headers={"content-type": "text/plain"}) == HttpAnswer(
        headers=[("content-type", "text/plain")]
    )


@pytest.mark.parametrize("status", [199, 101, 0, -1, 600])
def test_non_final_status_is_invalid(status: int) -> None:
    with pytest.raises(ValueError, match=str(status)):
        HttpAnswer(status)


@pytest.mark.parametrize("status", [200, 599])
def test_each_status_that_ends_a_request_is_taken(status: int) -> None:
    assert HttpAnswer(status).status == status


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "x"),
        ("a b", "x"),
        ("a:", "x"),
        ("a\n", "x"),
        ("\u00e4", "x"),
        ("a", "x\r\nset-cookie: y"),
        ("a", "x\n"),
        ("a", "\0"),
        ("a", "\u20ac"),
        ("a", "\x7f"),
    ],
)
def test_unsendable_field_is_invalid(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        HttpAnswer(headers=[(name, value)])


def test_all_faults_come_in_one_report() -> None:
    with pytest.raises(ValueError, match=r"status 99 .*'a b'.*'c'"):
        HttpAnswer(99, [("a b", "x"), ("c", "\n")])


def test_a_body_is_bytes() -> None:
    with pytest.raises(TypeError, match="body is str"):
        HttpAnswer(body="text")  # type: ignore[arg-type]


def test_it_cannot_be_changed_and_can_be_a_key() -> None:
    answer = HttpAnswer(body=b"x")
    with pytest.raises(dataclasses.FrozenInstanceError):
        answer.status = 500  # type: ignore[misc]
    assert {answer: 1}[HttpAnswer(body=b"x")] == 1


def test_set_field_replaces_each_of_its_name() -> None:
    answer = HttpAnswer(201, [("Age", "1"), ("b", "2"), ("age", "3")], b"x")
    assert answer.with_header(("age", "7")) == HttpAnswer(201, [("b", "2"), ("age", "7")], b"x")
    assert answer.headers[0] == ("Age", "1")


def test_its_repr_shows_no_body() -> None:
    assert repr(HttpAnswer(503, {"a": "b"}, b"secret")) == "<HttpAnswer 503, 1 headers, 6 bytes>"
