"""Recordings and files of GoReplay as recorded requests, and their copy as a new recording."""

from __future__ import annotations

import gzip
import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import (
    RecordedRequest,
    RecordingHeader,
    RecordingTrailer,
    Redaction,
    open_recording,
)
from autoglm_throttle.traffic.sources import RequestFile, copy_to_recording, open_source, recorded_names

SECRET = "s3cr3t-S3CR3T"
ONE = RecordedRequest(t_s=0, id=0, method="POST", target="/a", body=b"xy", body_len=2)


def recording(
    path: Path, *entries: RecordedRequest, end: RecordingTrailer | None = None, **header: object
) -> Path:
    lines = [RecordingHeader(**header).to_line(), *(one.to_line() for one in entries)]  # type: ignore[arg-type]
    lines += [] if end is None else [end.to_line()]
    path.write_text("\n".join([*lines, ""]))
    return path


def gor(path: Path, body: str = "xy", url: str = "/a", *names: str) -> Path:
    """A file of GoReplay with one request and a secret in each of the named fields."""
    head = "".join(f"{name}: {SECRET}\r\n" for name in names) + f"Content-Length: {len(body)}\r\n"
    text = f"1 {SECRET} 5 0\nPOST {url} HTTP/1.1\r\n{head}\r\n{body}\n\U0001f435\U0001f648\U0001f649\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize(
    ("bodies", "body", "hashed"),
    [(RecordBody.HASH, None, True), (RecordBody.NONE, None, False), (RecordBody.FULL, b"xy", True)],
)
def test_import_stores_bodies_as_configured(
    tmp_path: Path, bodies: RecordBody, body: bytes | None, hashed: bool
) -> None:
    out = tmp_path / "b.jsonl"
    assert copy_to_recording(open_source(gor(tmp_path / "a.gor.gz")), out, bodies) == 1
    (entry,) = open_recording(out).entries()
    assert (entry.body, entry.body_len) == (body, 2)
    assert entry.body_sha256 == (hashlib.sha256(b"xy").hexdigest() if hashed else "")


def test_a_body_above_the_limit_is_kept_as_a_hash(tmp_path: Path) -> None:
    long = "x" * (64 * 1024 + 1)
    source = open_source(gor(tmp_path / "a.gor", long))
    copy_to_recording(source, tmp_path / "b.jsonl", RecordBody.FULL)
    (entry,) = open_recording(tmp_path / "b.jsonl").entries()
    assert (entry.body, entry.body_len) == (None, len(long))
    assert entry.body_sha256 == hashlib.sha256(long.encode()).hexdigest()


def test_header_states_the_stored_data(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl", ONE, start="2026-01-02T03:04:05.678901+00:00")
    assert open_source(path).header == open_recording(path).header
    out = tmp_path / "b.jsonl"
    redaction = Redaction(keep_query=["q"])
    copy_to_recording(open_source(gor(tmp_path / "a.gor"), redaction), out, RecordBody.NONE)
    stated = open_recording(out).header.redaction
    assert (stated["query"], stated["body"], stated["key"]) == (["q"], "none", "none")
    stricter = open_source(out, Redaction())
    assert (stricter.header.redaction["query"], stricter.header.redaction["key"]) == ([], "none")


def test_no_secret_of_an_imported_file_is_written(tmp_path: Path) -> None:
    names = ("Authorization", "Cookie", "X-Api-Key", "X-Else")
    path = gor(tmp_path / "a.gor", SECRET, f"http://user:{SECRET}@h/a?token={SECRET}", *names)
    source, out = open_source(path), tmp_path / "out"
    assert copy_to_recording(source, out) == 1
    assert SECRET.encode() not in out.read_bytes()
    assert source.problem_lines() == ["4 header fields that a recorder does not store were left out"]


def test_hand_made_recording_is_redacted(tmp_path: Path) -> None:
    entry = RecordedRequest(
        t_s=0, id=0, method="GET", target="/a?t=1", headers=(("cookie", SECRET), ("x-own", "1"))
    )
    path = recording(tmp_path / "r.jsonl", entry)
    source = open_source(path)
    copy_to_recording(source, tmp_path / "a")
    assert SECRET not in (tmp_path / "a").read_text()
    assert source.problem_lines() == ["1 header fields were left out"]
    assert [one.headers for one in open_source(path).entries()] == [(("x-own", "1"),)]
    (stricter,) = open_source(path, Redaction()).entries()
    assert (stricter.target, stricter.headers) == ("/a?*=*", ())


def test_recording_omits_data_that_no_recorder_stores(tmp_path: Path) -> None:
    secrets = ("authorization", "x-goog-api-key", "cf-connecting-ip")
    fields = (*((name, SECRET) for name in secrets), ("x-auth-priority", "high"), ("x-own", "1"))
    targets = ("http://bob:hunter2@h/a?b=1", "/cb?c#t=hunter2", "//bob:hunter2@h/d", "*", "h:80", "#hunter2")
    entries = [
        RecordedRequest(t_s=0, id=number, method="GET", target=target, headers=fields)
        for number, target in enumerate(targets)
    ]
    source = open_source(recording(tmp_path / "r.jsonl", *entries))
    kept = list(source.entries())
    assert [one.target for one in kept] == ["/a?b=1", "/cb?c", "/d", "*", "h:80", "/"]
    assert {one.headers for one in kept} == {(("x-auth-priority", "high"), ("x-own", "1"))}
    assert source.problem_lines() == [
        "18 header fields were left out",
        "of 4 requests a part of the URL was left out or masked",
    ]


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ({"headers": ["accept", "cookie", "no name", 7], "query": ["q", 7]}, (["accept"], ["q"])),
        ({"headers": "accept"}, ([], [])),
    ],
)
def test_redaction_header_of_a_recording_is_validated(
    tmp_path: Path, stated: dict[str, object], kept: tuple[list[str], list[str]]
) -> None:
    assert recorded_names(recording(tmp_path / "r.jsonl", ONE, redaction=stated)) == kept
    assert recorded_names(gor(tmp_path / "a.gor")) == ([], [])


@pytest.mark.parametrize("end", [RecordingTrailer("max_bytes", 7), RecordingTrailer("max_s", 0), None])
def test_the_end_and_the_share_of_a_recording_are_carried_over(
    tmp_path: Path, end: RecordingTrailer | None
) -> None:
    path = recording(tmp_path / "r.jsonl", ONE, end=end, sample=0.25, start="2026-01-02T03:04:05+00:00")
    copy_to_recording(open_source(path), tmp_path / "s.jsonl")
    before, after = open_recording(path), open_recording(tmp_path / "s.jsonl")
    assert list(after.entries()) == list(before.entries())
    assert (after.end, after.header) == (end, before.header)


def test_file_is_private_complete_and_never_overwrites(tmp_path: Path) -> None:
    source = open_source(recording(tmp_path / "r.jsonl", ONE))
    out = tmp_path / "out.jsonl.gz"
    copy_to_recording(source, out)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert [one.body for one in open_source(out).entries()] == [b"xy"]
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for existing in (out, link):
        with pytest.raises(TrafficError, match="exists already"):
            copy_to_recording(source, existing)
    with pytest.raises(TrafficError, match="cannot be written"):
        copy_to_recording(source, tmp_path / "no" / "folder")
    assert not (tmp_path / "elsewhere").exists()


def test_the_same_source_gives_the_same_packed_bytes(tmp_path: Path) -> None:
    source = open_source(recording(tmp_path / "r.jsonl", ONE))
    for name in ("a.gz", "b.gz"):
        copy_to_recording(source, tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_file_problems_are_reported_with_line_numbers(tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl", ONE)
    with path.open("a") as more:
        more.write("nonsense\n" * 30)
    source = open_source(path)
    assert copy_to_recording(source, tmp_path / "s.jsonl") == 1
    assert source.problem_lines()[0] == "line 3: not JSON"
    assert source.problem_lines()[-1] == "and 10 more"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_write_error_leaves_no_file(tmp_path: Path, error: BaseException) -> None:
    out = tmp_path / "out.jsonl"

    class Ending:
        header, has_bodies, end = RecordingHeader(), False, None

        def entries(self) -> Iterator[RecordedRequest]:
            yield ONE
            assert out.stat().st_mode & 0o777 == 0o600, "from its first byte on"
            raise error

    expected = TrafficError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        copy_to_recording(cast("RequestFile", Ending()), out)
    if isinstance(error, OSError):
        assert str(caught.value) == f"{out}: cannot be written: No space left on device"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "begin", [b"", b"TIMESTAMP,a\n", b"{", b"[" * 5000, b'{"url":"http://h/","method":"GET"}']
)
def test_unknown_format_is_rejected(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(begin)
    with pytest.raises(TrafficError, match="no recording"):
        open_source(path)


def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(TrafficError, match="cannot be read"):
        open_source(tmp_path / "nowhere")
    broken = tmp_path / "a.gz"
    broken.write_bytes(b"not packed")
    with pytest.raises(TrafficError, match="cannot be read"):
        open_source(broken)
