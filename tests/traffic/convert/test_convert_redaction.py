"""Redaction during a conversion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoglm_throttle.traffic.convert import (
    Bodies,
    ConvertOptions,
    FileFormat,
    Fill,
    convert,
    open_source,
    recorded_names,
)
from autoglm_throttle.traffic.convert.parsed_request import target_of
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import RecordedRequest, RecordingHeader, RecordingTrailer, open_recording

SECRET = "password=hunter2"
ONE = RecordedRequest(t_s=0, id=0, method="POST", target="/a", body=b"xy", body_len=2)


def browser(path: Path, body: str = SECRET, moment: str = "2024-01-01T00:00:00Z") -> Path:
    """A document of a browser with one request that has a body."""
    request = {"method": "POST", "url": "http://h/login", "postData": {"text": body}}
    element = {"startedDateTime": moment, "request": request}
    path.write_text(json.dumps({"log": {"entries": [element]}}))
    return path


def recording(
    path: Path, *entries: RecordedRequest, end: RecordingTrailer | None = None, **heading: object
) -> Path:
    """A recording of ours."""
    lines = [RecordingHeader(**heading).to_line(), *(one.to_line() for one in entries)]  # type: ignore[arg-type]
    lines += [] if end is None else [end.to_line()]
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.mark.parametrize("to", list(FileFormat))
def test_bodies_of_an_import_are_written_only_if_asked_for(tmp_path: Path, to: FileFormat) -> None:
    har, out = browser(tmp_path / "a.har"), tmp_path / "out"
    base = "http://h"
    if to in (FileFormat.VEGETA, FileFormat.GOR):
        with pytest.raises(TrafficError, match=r"1 requests have a body .*or --fill .*--bodies full"):
            convert(open_source(har), out, to, ConvertOptions(base_url=base))
        assert not out.exists()
    convert(open_source(har), out, to, ConvertOptions(base_url=base, bodies=Fill(spaces=True)))
    assert SECRET not in "".join(_shown(out, to))
    whole = tmp_path / "whole"
    convert(open_source(har), whole, to, ConvertOptions(base_url=base, keep=Bodies.FULL))
    assert SECRET in "".join(_shown(whole, to))


def _shown(path: Path, form: FileFormat) -> Iterator[str]:
    yield path.read_text()
    for entry in open_source(path, form, None, [0.0]).entries():
        yield (entry.body or b"").decode()


def test_a_long_body_is_written_whole_where_no_recording_is_made(tmp_path: Path) -> None:
    long = "x" * (64 * 1024 + 1)
    har = browser(tmp_path / "a.har", long)
    convert(open_source(har), tmp_path / "a.gor", FileFormat.GOR, ConvertOptions(keep=Bodies.FULL))
    (entry,) = open_source(tmp_path / "a.gor").entries()
    assert entry.body == long.encode()


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
    ("said", "kept"),
    [
        ({"headers": ["accept", "cookie", "no name", 7], "query": ["q", 7]}, (["accept"], ["q"])),
        ({"headers": "accept"}, ([], [])),
    ],
)
def test_redaction_header_of_a_recording_is_validated(
    tmp_path: Path, said: dict[str, object], kept: tuple[list[str], list[str]]
) -> None:
    assert recorded_names(recording(tmp_path / "r.jsonl", ONE, redaction=said)) == kept
    assert recorded_names(browser(tmp_path / "a.har")) == ([], [])


@pytest.mark.parametrize("end", [RecordingTrailer("max_bytes", 7), RecordingTrailer("max_s", 0), None])
def test_the_end_and_the_share_of_a_recording_are_carried_over(
    tmp_path: Path, end: RecordingTrailer | None
) -> None:
    path = recording(tmp_path / "r.jsonl", ONE, end=end, sample=0.25, start="2026-01-02T03:04:05+00:00")
    convert(open_source(path), tmp_path / "s.jsonl", FileFormat.JSONL)
    there, back = open_recording(path), open_recording(tmp_path / "s.jsonl")
    assert list(back.entries()) == list(there.entries())
    assert (back.end, back.header) == (end, there.header)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-12-31"])
def test_moments_that_no_recording_can_have_are_faults(tmp_path: Path, moment: str) -> None:
    source = open_source(browser(tmp_path / "a.har", moment=moment))
    assert list(source.entries()) == []
    assert source.problem_lines() == ["line 1: a part has the wrong type, or a time cannot be read"]
    path = recording(tmp_path / "r.jsonl", ONE, start=moment)
    convert(open_source(path), tmp_path / "b.har", FileFormat.HAR)
    assert "1970-01-01T00:00:00" in (tmp_path / "b.har").read_text()


def test_recording_without_start_time_begins_in_1970(tmp_path: Path) -> None:
    convert(
        open_source(recording(tmp_path / "r.jsonl", replace(ONE, t_s=1.0), start="")),
        tmp_path / "a.har",
        FileFormat.HAR,
    )
    assert open_source(tmp_path / "a.har").heading.start == "1970-01-01T00:00:01.000000+00:00"
    convert(
        open_source(recording(tmp_path / "s.jsonl", ONE, start="2024-01-01T00:00:00")),
        tmp_path / "b.har",
        FileFormat.HAR,
    )
    assert open_source(tmp_path / "b.har").heading.start == "2024-01-01T00:00:00.000000+00:00"


def test_chunked_encoding_is_dropped_for_complete_bodies(tmp_path: Path) -> None:
    chunked = RecordedRequest(
        t_s=0,
        id=0,
        method="POST",
        target="/",
        body=b"xy",
        body_len=2,
        headers=(("transfer-encoding", "chunked"), ("accept", "a")),
    )
    path = recording(tmp_path / "r.jsonl", chunked)
    convert(open_source(path), tmp_path / "a.gor", FileFormat.GOR)
    source = open_source(tmp_path / "a.gor")
    (entry,) = source.entries()
    assert entry.body == b"xy"


@pytest.mark.parametrize("linked", [True, False])
def test_a_file_that_appears_meanwhile_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, linked: bool
) -> None:
    source = open_source(recording(tmp_path / "r.jsonl", ONE))
    out = tmp_path / "out.gor"
    if not linked:

        def no_links(*_: object) -> None:
            raise PermissionError(1, "no links here")

        monkeypatch.setattr(Path, "hardlink_to", no_links)
    convert(source, out, FileFormat.GOR)
    assert [one.body for one in open_source(out).entries()] == [b"xy"]
    assert out.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(Path, "exists", lambda *_, **__: False)
    before = out.read_bytes()
    with pytest.raises(TrafficError, match="exists already"):
        convert(source, out, FileFormat.HAR)
    assert out.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(recording(tmp_path / "r.jsonl", ONE))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "hardlink_to", full)
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(TrafficError, match="cannot be written: No space left on device"):
        convert(source, tmp_path / "out.gor", FileFormat.GOR)
    assert [one.name for one in tmp_path.iterdir()] == ["r.jsonl"]
