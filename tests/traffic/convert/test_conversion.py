"""Conversion between formats: kept, lost and redacted data."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import stat
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoglm_throttle.traffic.convert import (
    Bodies,
    ConvertOptions,
    FileFormat,
    Fill,
    convert,
    open_source,
    write,
)
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import (
    RecordedRequest,
    RecordingHeader,
    RecordingTrailer,
    Redaction,
    open_recording,
)

START = "2026-01-02T03:04:05.678901+00:00"
BASE = "http://127.0.0.1:8000"

_VISIBLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
PATHS = st.text(_VISIBLE.filter(lambda c: c not in "?#;@\\"), max_size=20).map(lambda rest: f"/{rest}")
"""Without text that a redaction takes for a user name or for parameters."""

QUERIES = st.sampled_from(["", "?*", "?*=*", "?*=*&keep=1%20", "?keep=x&*=*"])
NAMES = st.sampled_from(["accept", "user-agent", "content-type", "x-priority"])
TEXT = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12).map(str.strip)
PAIRS = st.lists(
    NAMES.flatmap(
        lambda name: st.tuples(
            st.just(name), st.sampled_from(["high", "low"]) if name == "x-priority" else TEXT
        )
    ),
    max_size=5,
)


@st.composite
def entries(draw: st.DrawFn) -> list[RecordedRequest]:
    """A recording with bodies, in order of time."""
    times = sorted(draw(st.lists(st.integers(0, 3_600_000_000), min_size=1, max_size=6)))
    found = []
    for serial, at_us in enumerate(times):
        body = draw(st.binary(max_size=40))
        status = draw(st.sampled_from([0, 200, 429, 503]))
        found.append(
            RecordedRequest(
                t_s=at_us / 1e6,
                id=serial,
                method=draw(st.sampled_from(["GET", "POST", "DELETE"])),
                target=draw(PATHS) + draw(QUERIES),
                headers=tuple(draw(PAIRS)),
                body=body or None,
                body_len=len(body),
                body_sha256=hashlib.sha256(body).hexdigest() if body else "",
                client=draw(st.sampled_from(["", "00ff00ff00ff00ff"])),
                priority=draw(st.sampled_from(["", "high", "low"])),
                decision="limited" if status == 429 else "admitted",
                reason="ok",
                status=status,
                ms=draw(st.integers(0, 10**6)) / 1000.0,
                ttfb_ms=draw(st.sampled_from([None, 0.0, 1.5])),
            )
        )
    return found


def stored(path: Path, found: list[RecordedRequest], start: str = START) -> Path:
    lines = [RecordingHeader(start=start, made_by="0").to_line(), *(one.to_line() for one in found)]
    path.write_text("\n".join([*lines, RecordingTrailer("closed", 0).to_line(), ""]))
    return path


def there_and_back(
    folder: Path, found: list[RecordedRequest], form: FileFormat
) -> tuple[list[RecordedRequest], datetime]:
    """The entries after a way through another form, and when the new recording begins."""
    there, back = folder / "there", folder / "back.jsonl"
    for path in (there, back, folder / "from.jsonl"):
        path.unlink(missing_ok=True)
    source = open_source(stored(folder / "from.jsonl", found))
    convert(source, there, form, ConvertOptions(base_url=BASE))
    redaction = Redaction(keep_query=["keep"])
    times = [one.t_s for one in found] if form is FileFormat.VEGETA else None
    options = ConvertOptions(keep=Bodies.FULL)
    account = convert(open_source(there, form, redaction, times), back, FileFormat.JSONL, options)
    assert account.written == len(found)
    recording = open_recording(back)
    return list(recording.entries()), datetime.fromisoformat(recording.header.start)


def plain(one: RecordedRequest) -> tuple[str, str, list[tuple[str, str]], bytes]:
    headers = [pair for pair in one.headers if pair[0] != "content-length"]
    return one.method, one.target, headers, one.body or b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(found=entries())
@pytest.mark.parametrize("form", [FileFormat.GOR, FileFormat.HAR, FileFormat.JSONL])
def test_there_and_back_keeps_requests_and_times(
    tmp_path: Path, form: FileFormat, found: list[RecordedRequest]
) -> None:
    came, start = there_and_back(tmp_path, found, form)
    assert [plain(one) for one in came] == [plain(one) for one in found]
    timed = [one for one in zip(found, came, strict=True) if one[0].status or form is not FileFormat.GOR]
    assert [(after.status, after.ms) for _, after in timed] == [
        (before.status, before.ms) for before, _ in timed
    ]
    began = datetime.fromisoformat(START)
    for before, after in zip(found, came, strict=True):
        shift = start + timedelta(seconds=after.t_s) - (began + timedelta(seconds=before.t_s))
        assert shift == timedelta(0)  # exact: both are whole microseconds


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(found=entries())
def test_through_vegeta_the_order_of_fields_of_one_name_is_kept(
    tmp_path: Path, found: list[RecordedRequest]
) -> None:
    came, _ = there_and_back(tmp_path, found, FileFormat.VEGETA)
    for before, after in zip(found, came, strict=True):
        assert (before.method, before.target, before.body) == (after.method, after.target, after.body)
        assert sorted(before.headers, key=lambda pair: pair[0]) == sorted(
            after.headers, key=lambda pair: pair[0]
        )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(found=entries())
def test_through_har_nothing_is_lost(tmp_path: Path, found: list[RecordedRequest]) -> None:
    came, _ = there_and_back(tmp_path, found, FileFormat.HAR)
    first = came[0].t_s - found[0].t_s
    for before, after in zip(found, came, strict=True):
        assert after.t_s - first == pytest.approx(before.t_s, abs=1.1e-6)
        assert json.loads(after.to_line()) | {"t": 0} == json.loads(before.to_line()) | {"t": 0}


ONE = RecordedRequest(t_s=0, id=0, method="POST", target="/a", body=b"xy", body_len=2)
HASHED = RecordedRequest(t_s=1, id=1, method="POST", target="/b", body_len=3, body_sha256="1" * 64)


@pytest.mark.parametrize("form", [FileFormat.VEGETA, FileFormat.GOR])
def test_missing_bodies_stop_the_conversion_and_are_counted(tmp_path: Path, form: FileFormat) -> None:
    path = stored(tmp_path / "r.jsonl", [ONE, HASHED, HASHED])
    with pytest.raises(TrafficError, match="2 requests have a body that was not recorded"):
        convert(open_source(path), tmp_path / "out", form, ConvertOptions(base_url=BASE))
    assert [one.name for one in tmp_path.iterdir()] == ["r.jsonl"]
    for fill, body in ((Fill(spaces=True), b"   "), (Fill(body=b"{}"), b"{}")):
        options = ConvertOptions(base_url=BASE, bodies=fill)
        out = tmp_path / f"out{len(body)}"
        assert convert(open_source(path), out, form, options).written == 3
        times = [0.0, 1.0, 2.0] if form is FileFormat.VEGETA else None
        bodies = [one.body for one in open_source(out, form, None, times).entries()]
        assert bodies == [b"xy", body, body]


def test_har_keeps_a_hash_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "out.har"
    convert(open_source(stored(tmp_path / "r.jsonl", [HASHED])), out, FileFormat.HAR)
    (back,) = open_source(out).entries()
    assert (back.body, back.body_len, back.body_sha256) == (None, 3, "1" * 64)


@pytest.mark.parametrize(
    ("keep", "body", "hashed"),
    [(Bodies.HASH, None, True), (Bodies.NONE, None, False), (Bodies.FULL, b"xy", True)],
)
def test_import_stores_bodies_as_configured(
    tmp_path: Path, keep: Bodies, body: bytes | None, hashed: bool
) -> None:
    gor, out = tmp_path / "a.gor", tmp_path / "b.jsonl"
    convert(open_source(stored(tmp_path / "r.jsonl", [ONE])), gor, FileFormat.GOR)
    convert(open_source(gor), out, FileFormat.JSONL, ConvertOptions(keep=keep))
    (entry,) = open_recording(out).entries()
    assert (entry.body, entry.body_len) == (body, 2)
    assert entry.body_sha256 == (hashlib.sha256(b"xy").hexdigest() if hashed else "")


def test_header_states_the_stored_data(tmp_path: Path) -> None:
    path, gor, out = stored(tmp_path / "r.jsonl", [ONE]), tmp_path / "a.gor", tmp_path / "b.jsonl"
    assert open_source(path).heading == open_recording(path).header
    convert(open_source(path), gor, FileFormat.GOR)
    convert(
        open_source(gor, None, Redaction(keep_query=["q"])),
        out,
        FileFormat.JSONL,
        ConvertOptions(keep=Bodies.NONE),
    )
    said = open_recording(out).header.redaction
    assert (said["query"], said["body"], said["key"]) == (["q"], "none", "none")
    stricter = open_source(out, None, Redaction())
    assert (stricter.heading.redaction["query"], stricter.heading.redaction["key"]) == ([], "none")


def test_a_body_above_the_limit_is_kept_as_a_hash(tmp_path: Path) -> None:
    long = "x" * (64 * 1024 + 1)
    request = {"method": "POST", "url": "/", "postData": {"text": long}}
    element = {"startedDateTime": "2024-01-01T00:00:00Z", "request": request}
    har = tmp_path / "a.har"
    har.write_text(json.dumps({"log": {"entries": [element]}}))
    convert(open_source(har), tmp_path / "b.jsonl", FileFormat.JSONL, ConvertOptions(keep=Bodies.FULL))
    (entry,) = open_recording(tmp_path / "b.jsonl").entries()
    assert (entry.body, entry.body_len) == (None, len(long))
    assert entry.body_sha256 == hashlib.sha256(long.encode()).hexdigest()


SECRET = "s3cr3t-S3CR3T"


def planted(form: FileFormat) -> bytes:
    """A file of another program with secrets in every place that a recorder does not keep."""
    names = ["Authorization", "Cookie", "X-Api-Key", "X-Else"]
    url = f"http://user:{SECRET}@h/a?token={SECRET}"
    if form is FileFormat.VEGETA:
        header = {name: [SECRET] for name in names}
        return json.dumps({"method": "GET", "url": url, "header": header}).encode()
    if form is FileFormat.HAR:
        headers = [{"name": name, "value": SECRET} for name in names]
        request = {"method": "GET", "url": url, "headers": headers, "cookies": [{"name": SECRET}]}
        element = {"startedDateTime": "2024-01-01T00:00:00Z", "request": request, "comment": SECRET}
        return json.dumps({"log": {"entries": [element]}, "x": SECRET}).encode()
    head = "".join(f"{name}: {SECRET}\r\n" for name in names)
    return f"1 {SECRET} 5 0\nGET {url} HTTP/1.1\r\n{head}\r\n\n\U0001f435\U0001f648\U0001f649\n".encode()


@pytest.mark.parametrize("form", [FileFormat.VEGETA, FileFormat.GOR, FileFormat.HAR])
@pytest.mark.parametrize("to", list(FileFormat))
def test_no_secret_of_a_foreign_file_is_written(tmp_path: Path, form: FileFormat, to: FileFormat) -> None:
    path = tmp_path / "planted"
    path.write_bytes(planted(form))
    out = tmp_path / "out"
    account = convert(open_source(path, form, None, [0.0]), out, to, ConvertOptions(base_url=BASE))
    assert account.written == 1
    assert SECRET.encode() not in out.read_bytes()
    assert "4 header fields that a recorder does not store were left out" in account.lines()
    assert not any(SECRET in line for line in account.lines())


def test_hand_made_recording_is_redacted(tmp_path: Path) -> None:
    entry = RecordedRequest(
        t_s=0, id=0, method="GET", target="/a?t=1", headers=(("cookie", SECRET), ("x-own", "1"))
    )
    path = stored(tmp_path / "r.jsonl", [entry])
    account = convert(open_source(path), tmp_path / "a", FileFormat.HAR)
    assert SECRET not in (tmp_path / "a").read_text()
    assert "1 header fields were left out" in account.lines()
    assert [one.headers for one in open_source(path).entries()] == [(("x-own", "1"),)]
    (stricter,) = open_source(path, None, Redaction()).entries()
    assert (stricter.target, stricter.headers) == ("/a?*=*", ())


def test_file_is_private_complete_and_never_overwrites(tmp_path: Path) -> None:
    source = open_source(stored(tmp_path / "r.jsonl", [ONE]))
    out = tmp_path / "out.gor.gz"
    convert(source, out, FileFormat.GOR)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert gzip.decompress(out.read_bytes()).startswith(b"1 ")
    assert [one.body for one in open_source(out).entries()] == [b"xy"]
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for there in (out, link):
        with pytest.raises(TrafficError, match="exists already"):
            convert(source, there, FileFormat.GOR)
    with pytest.raises(TrafficError, match="cannot be written"):
        convert(source, tmp_path / "no" / "folder", FileFormat.GOR)
    assert not (tmp_path / "elsewhere").exists()


def test_the_same_source_gives_the_same_packed_bytes(tmp_path: Path) -> None:
    source = open_source(stored(tmp_path / "r.jsonl", [ONE]))
    for name in ("a.gz", "b.gz"):
        convert(source, tmp_path / name, FileFormat.JSONL)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_vegeta_needs_times_to_read_and_a_host_to_write(tmp_path: Path) -> None:
    path = stored(tmp_path / "r.jsonl", [ONE])
    with pytest.raises(TrafficError, match="--base-url"):
        convert(open_source(path), tmp_path / "t", FileFormat.VEGETA)
    convert(open_source(path), tmp_path / "t", FileFormat.VEGETA, ConvertOptions(base_url=BASE))
    with pytest.raises(TrafficError, match="no times: give a shape"):
        open_source(tmp_path / "t")
    with (tmp_path / "t").open("ab") as more:
        more.write((tmp_path / "t").read_bytes())
    source = open_source(tmp_path / "t", None, None, [4.5])
    assert [one.t_s for one in source.entries()] == [4.5]
    assert source.problem_lines() == ["1 requests after the end of the shape were left out"]


@pytest.mark.parametrize(
    "url", ["h", "ftp://h", "http://", "http://h/path", "http://u@h", "http://h\r\nx", "http://u:hunter2@h"]
)
def test_a_base_url_is_a_scheme_and_a_host(url: str) -> None:
    with pytest.raises(TrafficError, match="a base URL is") as told:
        ConvertOptions(base_url=url)
    assert "hunter2" not in str(told.value)


def test_lost_data_is_reported(tmp_path: Path) -> None:
    odd = RecordedRequest(t_s=0, id=4, method="OPTIONS", target="*")
    ending = RecordedRequest(
        t_s=1,
        id=5,
        method="POST",
        target="/",
        body=b"\n\xf0\x9f\x90\xb5\xf0\x9f\x99\x88\xf0\x9f\x99\x89\n",
        body_len=14,
    )
    path = stored(tmp_path / "r.jsonl", [odd, ONE, ending])
    options = ConvertOptions(base_url=BASE)
    vegeta = write(open_source(path), io.BytesIO(), FileFormat.VEGETA, options)
    assert vegeta.lines()[:2] == [
        "2 requests written",
        "lost: times, clients, priorities as decided, decisions, answers, content-length, the order of header"
        " fields, when the recording began and why it ended, records of dropping, sampling and redaction",
    ]
    assert vegeta.lines()[2] == "request 4: its target is no path"
    gor = write(open_source(path), io.BytesIO(), FileFormat.GOR, options)
    assert gor.written == 2
    assert "request 5: its body contains the separator line" in gor.lines()[2]
    har = write(open_source(path), io.BytesIO(), FileFormat.HAR, options)
    assert (har.written, har.lost[-1]) == (2, "records of dropping, sampling and redaction")


def test_file_problems_are_reported_with_line_numbers(tmp_path: Path) -> None:
    path = stored(tmp_path / "r.jsonl", [ONE])
    with path.open("a") as more:
        more.write("nonsense\n" * 30)
    account = write(open_source(path), io.BytesIO(), FileFormat.HAR)
    assert account.written == 1
    assert account.faults[0] == "line 4: not JSON"
    assert account.faults[-1] == "and 10 more"


def test_earliest_request_defines_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.gor"
    blocks = [
        f"1 {n} {at} 0\nGET /{n} HTTP/1.1\r\n\r\n\n\U0001f435\U0001f648\U0001f649\n"
        for n, at in ((1, 10**18 + 2500), (2, 10**18 + 1500))
    ]
    path.write_text("".join(blocks), newline="")
    source = open_source(path)
    assert source.heading.start == "2001-09-09T01:46:40.000001+00:00"
    assert [one.t_s for one in source.entries()] == [
        0.000002,
        0.0,
    ]  # from 1 us to 2.5 us: 1.5, rounded to the even


def test_unrepresentable_request_is_reported_and_omitted(tmp_path: Path) -> None:
    odd = {"startedDateTime": "2024-01-01T00:00:00Z", "time": 1e999, "request": {"method": "GET", "url": "/"}}
    kept = {"startedDateTime": "2024-01-01T00:00:00Z", "request": {"method": "GE T", "url": "/\n\u00e9"}}
    path = tmp_path / "a.har"
    path.write_text(json.dumps({"log": {"entries": [odd, kept]}}))
    source = open_source(path)
    (entry,) = source.entries()
    assert (entry.method, entry.target) == ("*", "/%0A%C3%A9")
    assert source.problem_lines() == ["request 1: t, ms and ttfb_ms must be from 0 to 1e+09"]


def test_goreplay_reads_the_written_file(tmp_path: Path) -> None:
    out = tmp_path / "out.gor"
    convert(open_source(stored(tmp_path / "r.jsonl", [ONE])), out, FileFormat.GOR)
    program = shutil.which("gor") or shutil.which("goreplay")
    if program is None:
        return
    words = [program, "--input-file", str(out), "--output-stdout", "--exit-after", "2s"]
    said = subprocess.run(words, capture_output=True, timeout=120, check=False)
    assert b"POST /a HTTP/1.1" in said.stdout


def test_write_error_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out.har"

    class InTheWay:
        heading, has_bodies, end = RecordingHeader(start=START), False, None

        def entries(self) -> Iterator[RecordedRequest]:
            out.mkdir()
            yield ONE

        def problem_lines(self) -> list[str]:
            return []

    with pytest.raises(TrafficError, match="exists already"):
        convert(InTheWay(), out, FileFormat.HAR)
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("form", [FileFormat.GOR, FileFormat.HAR])
def test_times_survive_rounding(tmp_path: Path, form: FileFormat) -> None:
    hard = [us for us in range(1, 200_000) if int(us / 1e6 * 1e6) != us][:5]
    assert hard
    found = [RecordedRequest(t_s=us / 1e6, id=us, method="GET", target="/") for us in [0, *hard]]
    came, _ = there_and_back(tmp_path, found, form)
    assert [one.t_s for one in came] == [one.t_s for one in found]
