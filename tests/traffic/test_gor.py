"""Files of GoReplay."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.gor import MAX_PENDING, GorFile, GorRequest, is_gor, read_requests
from autoglm_throttle.traffic.record import RecordingProblems
from autoglm_throttle.traffic.record.redaction import target_of

END = "\n\U0001f435\U0001f648\U0001f649\n".encode()
CAPTURE = (
    b"1 a1b2c3 1700000000000000000 0\n"
    b"POST /v1/predict?a=1 HTTP/1.1\r\nHost: example.org\r\nContent-Type: application/json\r\n"
    b'Content-Length: 7\r\n\r\n{"a":1}'
    + END
    + b"1 d4 1700000000500000000\nGET / HTTP/1.1\r\n\r\n"
    + END
    + b"2 a1b2c3 1700000000250000000 250000000\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    + END
    + b"3 a1b2c3 1700000009000000000 1\nHTTP/1.1 500 Oh\r\n\r\n"
    + END
    + b"2 d4 1700000000600000000 0\nHTTP/1.0 404 Not Found\r\n\r\n"
    + END
    + b"2 ffff 1700000000600000000 0\nHTTP/1.1 404 Not Found\r\n\r\n"
    + END
)


def read(text: bytes) -> tuple[list[GorRequest], list[str]]:
    faults = RecordingProblems()
    return list(read_requests(io.BytesIO(text), faults)), faults.lines()


def test_requests_are_read_with_their_answers() -> None:
    found, faults = read(CAPTURE)
    assert faults == []
    assert [(one.method, one.target, one.body) for one in found] == [
        ("POST", "/v1/predict?a=1", b'{"a":1}'),
        ("GET", "/", b""),
    ]
    assert [one.at_ns for one in found] == [1_700_000_000_000_000_000, 1_700_000_000_500_000_000]
    assert [(one.status, one.ms) for one in found] == [(200, 250.0), (404, 100.0)]
    assert found[0].headers[0] == ("host", "example.org")


def test_line_feeds_and_a_missing_last_separator_are_accepted() -> None:
    found, faults = read(b"1 a 5 0\nPUT /x HTTP/1.1\nContent-Length: 2\n\nab")
    assert faults == []
    assert [(one.method, one.body) for one in found] == [("PUT", b"ab")]


def test_a_head_may_end_with_its_block() -> None:
    found, faults = read(b"1 a 5 0\nGET /x HTTP/1.1\n" + END + b"1 b 5 0\nGET /y HTTP/1.1\r\nA: b\r\n" + END)
    assert faults == []
    assert [(one.target, one.headers) for one in found] == [("/x", []), ("/y", [("a", "b")])]


def test_chunked_bodies_are_put_together() -> None:
    chunks = b"5;x=1\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"
    found, faults = read(b"1 a 5 0\nPOST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + END)
    assert faults == []
    assert found[0].body == b"hello!"


def test_a_body_may_hold_lines_and_bytes_of_any_kind() -> None:
    body = bytes(range(256)) + b"\n\n1 a 5 0\n\n"
    head = f"POST / HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    found, faults = read(b"1 a 1000000000000 0\n" + head + body + END)
    assert faults == []
    assert (found[0].body, found[0].at_ns) == (body, 10**12)


GOOD = b"1 a 5 0\nGET / HTTP/1.1\r\n\r\n" + END


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"garbage\nGET / HTTP/1.1\r\n\r\n", "expected KIND ID START LATENCY"),
        (b"4 a 5 0\nGET / HTTP/1.1\r\n\r\n", "expected KIND ID START LATENCY"),
        (b"1 a x 0\nGET / HTTP/1.1\r\n\r\n", "expected KIND ID START LATENCY"),
        (b"1 b 5 0\nGET / HTTP/1.1", "the head of the request has no end"),
        (b"1 b 5 0\nGET /\r\n\r\n", "expected METHOD TARGET HTTP/1.1"),
        (b"1 b 5 0\nGET / HTTP/2\r\n\r\n", "expected METHOD TARGET HTTP/1.1"),
        (b"1 b 5 0\nGET elsewhere HTTP/1.1\r\n\r\n", "neither an absolute URL nor a path"),
        (b"1 b 5 0\nGET / HTTP/1.1\r\nno field\r\n\r\n", "a line of the head is no field"),
        (b"1 b 5 0\nGET / HTTP/1.1\r\n a: folded\r\n\r\n", "a line of the head is no field"),
        (b"1 b 5 0\nGET / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", "content-length is no length"),
        (b"1 b 5 0\nGET / HTTP/1.1\r\ncontent-length: 5\r\n\r\nab", "cut short: 2 of 5 bytes"),
        (
            b"1 b 5 0\nGET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz",
            "a chunk of the body has no size",
        ),
        (
            b"1 b 5 0\nGET / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
            "chunks of the body are cut",
        ),
        (b"2 a 5 0\nwhat", "expected HTTP/1.1 STATUS"),
        (b"1 b 5 0\nGET / HTTP/1.1\r\n\r\n" + b"x" * (1 << 21), "longer than 1048576 bytes"),
        (b"1 b 5 0\nGET / HTTP/1.1\r\n\r\n" + b"x\n" * (1 << 20), "longer than 1048576 bytes"),
        (b"", "expected KIND ID START LATENCY"),
    ],
)
def test_bad_block_is_reported_and_the_others_are_read(block: bytes, why: str) -> None:
    found, faults = read(GOOD + block + END + GOOD.replace(b"1 a ", b"1 c "))
    assert len(found) == 2
    assert len(faults) == 1
    assert faults[0].startswith("line 6: ")
    assert why in faults[0]


def test_line_number_is_correct_after_an_oversized_block() -> None:
    long = b"1 b 5 0\n" + b"x\n" * (1 << 20) + END[1:]
    _, faults = read(long + b"bad" + END)
    assert faults[1].startswith(f"line {(1 << 20) + 3}: ")


def test_no_more_than_some_wait_for_their_answers() -> None:
    blocks = b"".join(
        b"1 %d %d 0\nGET /%d HTTP/1.1\r\n\r\n" % (n, n, n) + END for n in range(MAX_PENDING + 50)
    )
    faults = RecordingProblems()
    stored = io.BytesIO(blocks + b"2 0 1 1\nHTTP/1.1 200 OK\r\n\r\n" + END)
    reading = read_requests(stored, faults)
    assert next(reading).target == "/0"
    assert stored.tell() < len(blocks)
    assert [one.target for one in reading] == [f"/{n}" for n in range(1, MAX_PENDING + 50)]


def test_requests_of_one_serial_are_all_kept() -> None:
    block = b"1 a %d 0\nGET /%d HTTP/1.1\r\n\r\n" + END
    answer = b"2 a 9 4\nHTTP/1.1 200 OK\r\n\r\n" + END
    found, faults = read(block % (1, 1) + block % (2, 2) + answer + answer)
    assert faults == []
    assert [(one.target, one.status) for one in found] == [("/1", 0), ("/2", 200)]


def test_separator_inside_a_line_ends_nothing() -> None:
    line = b"x" * (1 << 20) + END[1:]
    found, faults = read(b"1 a 5 0\n" + line + b"1 b 5 0\nGET / HTTP/1.1\r\n\r\n" + END + GOOD)
    assert len(found) == 1
    assert faults == ["line 1: longer than 1048576 bytes"]


def test_memory_for_a_block_that_is_too_long_is_bounded() -> None:
    stored = io.BytesIO(b"1 a 5 0\n" + b"x" * (40 << 20) + END + GOOD)
    tracemalloc.start()
    try:
        assert len(list(read_requests(stored, RecordingProblems()))) == 1
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def gor_file(path: Path, *blocks: tuple[int, int, str]) -> Path:
    """A file of requests without bodies: serial, nanoseconds and target."""
    text = b"".join(
        b"1 %d %d 0\nGET %s HTTP/1.1\r\n\r\n" % (n, at, url.encode()) + END for n, at, url in blocks
    )
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_earliest_request_defines_the_start(tmp_path: Path) -> None:
    source = GorFile(gor_file(tmp_path / "a.gor", (1, 10**18 + 2500, "/1"), (2, 10**18 + 1500, "/2")))
    assert source.header.start == "2001-09-09T01:46:40.000001+00:00"
    # From 1 us to 2.5 us: 1.5 us, rounded to the even.
    assert [one.t_s for one in source.entries()] == [0.000002, 0.0]


def test_times_survive_rounding(tmp_path: Path) -> None:
    hard = [us for us in range(1, 200_000) if int(us / 1e6 * 1e6) != us][:5]
    assert hard
    source = GorFile(gor_file(tmp_path / "a.gor", *((us, 10**18 + us * 1000, "/") for us in [0, *hard])))
    assert [one.t_s for one in source.entries()] == [us / 1e6 for us in [0, *hard]]


def test_unrepresentable_request_is_reported_and_omitted(tmp_path: Path) -> None:
    path = gor_file(tmp_path / "a.gor", (1, 0, "/"), (2, 2 * 10**18, "/late"), (3, 5, "/\u00e9"))
    source = GorFile(path)
    assert [one.target for one in source.entries()] == ["/", "/%C3%83%C2%A9"]
    assert source.problem_lines() == ["request 2: t, ms and ttfb_ms must be from 0 to 1e+09"]


def test_truncated_gzip_yields_complete_requests(tmp_path: Path) -> None:
    path = gor_file(tmp_path / "a.gor.gz", *((n, 5, "/") for n in range(10_000)))
    path.write_bytes(path.read_bytes()[:-200])
    source = GorFile(path)
    assert len(list(source.entries())) > 100
    assert any("packed data ends in the middle" in line for line in source.problem_lines())


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="cannot be read"):
        GorFile(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("begin", "expected"),
    [
        (b"1 ab 5 0\nGET / HTTP/1.1\n", True),
        (b"1 ab 5\r\nGET / HTTP/1.1\r\n", True),
        (b'{"v":1,"kind":"autoglm-throttle-traffic"}\n', False),
        (b"", False),
    ],
)
def test_file_is_recognized_by_its_first_bytes(begin: bytes, expected: bool) -> None:
    assert is_gor(begin) is expected


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("//u:hunter2@h/login?a=1", "/login?a=1"),
        ("//u:hunter2@h", "/"),
        ("//u:hunter2@h?a", "/?a"),
        ("///u:hunter2@h//v:hunter2@i/x", "/x"),
        ("http:////u:hunter2@h/x", "/x"),
        ("http://u:hunter2@h/@x", "/@x"),
        ("/a//b@c", "/a//b@c"),
        ("//plain/path", "//plain/path"),
        ("/x?next=//u@h", "/x?next=//u@h"),
    ],
)
def test_a_user_in_a_url_is_left_out(url: str, target: str) -> None:
    assert target_of(url) == target
