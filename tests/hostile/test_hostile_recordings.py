"""Hostile files for record, replay and load: each is a clear error or a counted problem, in bounded memory.

Each file goes through every command that reads one. The child process has little memory, so that a bomb is
seen without a large machine.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.cli import main
from autoglm_throttle.settings.groups.observe import RecorderSettings
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.record import RecordedRequest, Recorder, RecordingHeader, open_recording
from autoglm_throttle.traffic.replay import ReplayOptions, prepare
from autoglm_throttle.traffic.trace import HEADER
from tests.hostile.attacks import Attack

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:9"
HEADING = RecordingHeader(start="2026-11-24T00:00:00+00:00").to_line()
USUAL: dict[str, Any] = {"v": 1, "t": 0.5, "id": 1, "method": "GET", "target": "/a"}
WAIT_S = 120.0
MEMORY_BYTES = 64 << 20
"""Address space of a child besides that of its imports. Its bounds are smaller, too, so that bombs may be."""

CHILD = f"""
import resource, sys
from autoglm_throttle.cli import main
from autoglm_throttle.traffic.record import recording_reader
from autoglm_throttle.traffic.replay import prepare
recording_reader.HELD_BYTES = sys.modules[prepare.__module__].BODIES_AT_MOST = {8 << 20}
from tests.hostile.test_hostile_recordings import commands
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + {MEMORY_BYTES},) * 2)
for words in commands(*sys.argv[1:]):
    print(f"status {{main(words)}}", file=sys.stderr)
"""

Feed = Callable[[Path], str]
"""Gives a file to every command; returns all output."""


def commands(name: str, folder: str) -> Iterator[list[str]]:
    """Every command that reads a file of requests."""
    body, out = Path(folder, "body"), Path(folder, "out.jsonl")
    body.write_bytes(b"{}")
    out.unlink(missing_ok=True)
    yield ["record", "info", name]
    yield ["record", "info", name, "--format", "json"]
    yield ["record", "check", name]
    yield ["record", "convert", name, str(out)]
    yield ["record", "convert", name, str(out) + ".gz", "--mask-path", "/{x}", "--bodies", "full"]
    yield ["replay", name, URL, "--dry-run", "--body", str(body)]
    yield ["replay", name, URL, "--dry-run", "--fill", "--speed", "10"]
    yield ["load", URL, "--shape", f"trace:{name}", "--dry-run"]
    Path(str(out) + ".gz").unlink(missing_ok=True)


def is_reported(status: int, words: Sequence[str], out: str, err: str) -> None:
    """Check that a command ended as commands end, and that its JSON is JSON."""
    assert status in (0, 1, 2), (words, status)
    assert not any(word in err for word in ("Traceback", "bug", "out of memory")), (words, err[-2000:])
    assert (status == 2) == err.startswith("autoglm-throttle "), (words, status, err[-500:])
    if "json" in words and status != 2:
        json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} in {words}"))


@pytest.fixture
def feed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Feed:
    """Runs every command in this process."""

    def run(path: Path) -> str:
        every = ""
        for words in commands(str(path), str(tmp_path)):
            status = main(words)
            out, err = capsys.readouterr()
            is_reported(status, words, out, err)
            every += out + err
        return every

    return run


def feed_child(path: Path, folder: Path) -> str:
    """Run every command in a process with little memory; one that hangs is ended."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    statuses = [line for line in run.stderr.splitlines() if line.startswith("status ")]
    assert len(statuses) == len(list(commands("none", str(folder)))), run.stderr[-2000:]
    assert not any(word in run.stderr for word in ("Traceback", "bug", "out of memory")), run.stderr[-2000:]
    return run.stdout[-20_000:] + run.stderr[-20_000:]


def entry(**changed: object) -> str:
    """A line of a recording."""
    return json.dumps(USUAL | changed)


def stored(path: Path, lines: Iterable[str | bytes]) -> Path:
    """Write the lines of a recording, packed if the name says so."""
    raw = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in (HEADING, *lines))
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def packed(path: Path, parts: Iterable[bytes]) -> Path:
    """Write a packed file part by part."""
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part in parts:
            file.write(part)
    return path


NUMBERS = (
    "-1",
    "NaN",
    "-Infinity",
    "1e999",
    "-0.0001",
    "1" + "0" * 400,
    "9" * 4299,
    "true",
    "null",
    "[]",
    '"1"',
)
TEXTS = (
    "1",
    "null",
    "[]",
    "{}",
    "true",
    r'"\u0000"',
    r'"\ud800"',
    r'"a\r\nb: c"',
    '""',
    '"' + "x" * 300_000 + '"',
)
LISTS = (*TEXTS, "[1]", "[[1, 2]]", '["ab"]', '{"ab": 1}', '[["a", "b", "c"]]', '[["a b", ""]]', "[" * 5000)
FIELDS = {
    **dict.fromkeys(("t", "id", "body_len", "status", "ms", "ttfb_ms", "v"), NUMBERS),
    **dict.fromkeys(("method", "target", "client", "priority", "decision", "reason", "body_b64"), TEXTS),
    **dict.fromkeys(("body_sha256", "kind", "end"), TEXTS),
    "headers": LISTS,
}


@pytest.mark.parametrize("field", FIELDS)
def test_wrong_value_of_a_field_is_a_counted_problem(
    field: str, feed: Feed, tmp_path: Path, attack: Attack
) -> None:
    values = FIELDS[field]
    with attack("recording: wrong values of each field", times=len(values)):
        lines = []
        for value in values:
            others = {name: json.dumps(one) for name, one in USUAL.items() if name != field}
            lines.append(
                "{" + ", ".join(f'"{name}": {one}' for name, one in {**others, field: value}.items()) + "}"
            )
        found = feed(stored(tmp_path / "r.jsonl", [entry(), *lines, entry(id=9, t=1.0)]))
        assert "line " in found


@pytest.mark.slow
@pytest.mark.parametrize(
    "value", [*NUMBERS, "{}", '{"headers": [1e999], "query": {"a": NaN}}', r'{"\u0000": 1e999}']
)
@pytest.mark.parametrize("field", ["v", "kind", "start", "library", "redaction", "sample", "unknown"])
def test_wrong_value_of_the_first_line(
    field: str, value: str, feed: Feed, tmp_path: Path, attack: Attack
) -> None:
    with attack("recording: wrong values in the first line"):
        heading = {name: json.dumps(one) for name, one in json.loads(HEADING).items()} | {field: value}
        line = "{" + ", ".join(f'"{name}": {one}' for name, one in heading.items()) + "}"
        path = tmp_path / "r.jsonl"
        path.write_text(f"{line}\n{entry()}\n" + '{"v": 1, "end": "closed", "dropped": ' + "9" * 4299 + "}\n")
        assert feed(path)


@pytest.mark.parametrize("version", ["0", "2", "-1", '"1"', "1e999", "null"])
def test_another_version_is_named(version: str, feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("recording: another version"):
        path = tmp_path / "r.jsonl"
        path.write_text(HEADING.replace('"v":1', f'"v":{version}') + f"\n{entry()}\n")
        assert "version" in feed(path) or version == "1e999"
        feed(stored(path, [entry().replace('"v": 1', f'"v": {version}'), entry()]))


def test_cut_or_damaged_packed_file_ends_where_it_is_readable(
    feed: Feed, tmp_path: Path, attack: Attack
) -> None:
    whole = stored(tmp_path / "r.jsonl.gz", [entry(id=number) for number in range(300)]).read_bytes()
    cuts = (0, 1, 9, 10, 11, len(whole) // 2, len(whole) - 9, len(whole) - 1)
    with attack("recording: a cut gzip", times=len(cuts)):
        for length in cuts:
            (tmp_path / "r.jsonl.gz").write_bytes(whole[:length])
            assert feed(tmp_path / "r.jsonl.gz")
    damaged = (
        whole + b"garbage",
        whole + b"\x1f\x8b",
        whole[:40] + b"\xff" * 40 + whole[80:],
        b"\x1f\x8b" * 99,
    )
    with attack("recording: a damaged gzip, or one with a tail", times=len(damaged)):
        for raw in damaged:
            (tmp_path / "r.jsonl.gz").write_bytes(raw)
            assert feed(tmp_path / "r.jsonl.gz")


@pytest.mark.parametrize(
    "raw",
    [
        b"\0" * 5000,
        HEADING.encode() + b"\n" + b"\0" * 5000 + b"\n" + entry().encode(),
        HEADING.encode() + b"\n" + entry().encode().replace(b"/a", b"/\0") + b"\n" + entry().encode() + b"\n",
        HEADING.encode() + b"\r\n\r\n\n" + entry().encode() + b"\r\n",
        b"\xff\xfe" + HEADING.encode("utf-16-le"),
        b"\xef\xbb\xbf" + HEADING.encode() + b"\n" + entry().encode(),
        b"{" * 5000,
        b"\n" * 5000,
        b"1 " * 5000,
    ],
)
def test_bytes_that_are_no_lines(raw: bytes, feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("recording: NUL bytes, other encodings, nothing but brackets or line ends"):
        (tmp_path / "r.jsonl").write_bytes(raw)
        assert feed(tmp_path / "r.jsonl")


def test_long_lines_are_skipped_and_counted(feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("recording: lines of 10 MB", times=3):
        long = entry(target="/" + "x" * 10_000_000)
        assert "line 3: longer than" in feed(stored(tmp_path / "r.jsonl", [entry(), long, entry(id=2)]))
        assert "line 2: longer than" in feed(stored(tmp_path / "r.jsonl", [b"\0" * 10_000_000, entry()]))
        (tmp_path / "r.jsonl").write_bytes(b"x" * 10_000_000)
        assert "first line is not JSON" in feed(tmp_path / "r.jsonl")


def test_times_out_of_order_are_sorted_or_counted(feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("recording: times out of order"):
        times = [500.0, 0.0, 499.0, 380.1, 379.9, 500.0, 1.0]
        found = feed(stored(tmp_path / "r.jsonl", [entry(t=t, id=n) for n, t in enumerate(times)]))
        assert "out of order" in found


@pytest.mark.parametrize("last_s", [2_592_001.0, 999_999_999.0])
def test_recording_of_years_is_refused_before_a_plan(
    last_s: float, feed: Feed, tmp_path: Path, attack: Attack
) -> None:
    with attack("recording: two requests decades apart"):
        found = feed(stored(tmp_path / "r.jsonl", [entry(t=0.0), entry(t=last_s, id=2)]))
        assert "longer than 30 days" in found


def test_trace_of_years_is_refused_before_a_plan(feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("trace: two requests decades apart"):
        path = tmp_path / "t.csv"
        path.write_text(f"{HEADER}\n2001-01-01 00:00:00,1,1\n2033-01-01 00:00:00,1,1\n")
        assert "longer than 30 days" in feed(path)


def test_header_fields_of_another_shape_are_counted(feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("recording: header fields of another shape", times=3):
        shapes: tuple[object, ...] = (["ab"], {"ab": 1}, "ab")
        found = feed(stored(tmp_path / "r.jsonl", [entry(), *(entry(headers=one) for one in shapes)]))
        assert "unreadable 3 lines" in found


def test_sum_of_huge_lengths_can_be_printed(feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("recording: lengths whose sum has more digits than Python prints", times=20):
        line = entry(body_len=0).replace('"body_len": 0', f'"body_len": {"9" * 4299}')
        assert "unreadable 20 lines" in feed(stored(tmp_path / "r.jsonl", [entry(), *[line] * 20]))


def test_huge_bodies_are_not_filled(tmp_path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    def lengths(count: int, length: int) -> list[RecordedRequest]:
        return [
            RecordedRequest(
                t_s=number, id=number, method="POST", target=f"/{number}", body_len=length + number
            )
            for number in range(count)
        ]

    with attack("recording: bodies of announced petabytes to fill", times=3):
        fill = ReplayOptions(fill=True)
        with pytest.raises(TrafficError, match="is not filled"):
            prepare(lengths(1, 2**50), options=fill)
        monkeypatch.setattr(sys.modules[prepare.__module__], "BODIES_AT_MOST", 10_000)
        with pytest.raises(TrafficError, match="more than 10000 bytes"):
            prepare(lengths(20, 1000), options=fill)
        assert len(prepare(lengths(9, 1000), options=fill).load.plan) == 9


def test_body_longer_than_a_recorder_stores_is_a_problem(feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("recording: a body longer than a recorder stores"):
        body = base64.b64encode(b"x" * 65_537).decode()
        found = feed(stored(tmp_path / "r.jsonl", [entry(), entry(id=2, body_b64=body)]))
        assert "line 3: body_b64 is longer than 65536 bytes" in found


GOR = b"1 a 1700000000000000000 0\n"
MONKEYS = "\n\U0001f435\U0001f648\U0001f649\n".encode()
HEAD = b"POST /x HTTP/1.1\r\nHost: h\r\n"
GOOD = GOR + b"GET /good HTTP/1.1\r\n\r\n" + MONKEYS


@pytest.mark.parametrize(
    "block",
    [
        b"1 a " + b"9" * 19 + b" 0\n" + HEAD + b"\r\n",
        b"1 a 99999999999999999999 0\n" + HEAD + b"\r\n",
        b"1 a -1 0\n" + HEAD + b"\r\n",
        b"7 a 1 0\n" + HEAD + b"\r\n",
        b"1 " + b"a" * 300 + b" 1 0\n" + HEAD + b"\r\n",
        b"2 a 1700000000000000000 -5\nHTTP/1.1 999 x\r\n\r\n",
        b"2 a 1700000000000000000 9999999999999999999\nHTTP/1.1 200 OK\r\n\r\n",
        b"2 a 1 0\nHTTP/9 x\r\n\r\n",
        b"1 a",
        b"\0" * 1000,
    ],
)
def test_gor_with_broken_first_lines(block: bytes, feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("GoReplay: broken first lines, impossible times and latencies"):
        (tmp_path / "r.gor").write_bytes(GOOD + block + MONKEYS + GOOD)
        assert feed(tmp_path / "r.gor")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"G\0T / HTTP/1.1\r\n\r\n",
        b"GET /\xff\xfe\x80 HTTP/1.1\r\nX: \xff\0\r\n\r\n",
        b"GET http://u:p@h/\0 HTTP/1.1\r\n\r\n",
        b"GET //u:p@//@//@ HTTP/1.1\r\n\r\n",
        b"GET " + b"/" * 500_000 + b" HTTP/1.1\r\n\r\n",
        b"GET //" + b"@" * 500_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /a HTTP/1.1\r\n" + b"a:\r\n" * 100_000 + b"\r\n",
        b"GET /a HTTP/1.1\r\n : x\r\n\r\n",
        b"GET /a HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
        b"GET /a HTTP/1.1\r\nX: a\rY: b\r\n\r\n",
        HEAD,
    ],
)
def test_gor_with_broken_heads(message: bytes, feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("GoReplay: broken heads of requests"):
        (tmp_path / "r.gor").write_bytes(GOOD + GOR + message + MONKEYS + GOOD)
        assert feed(tmp_path / "r.gor")


@pytest.mark.parametrize(
    ("rest", "problem"),
    [
        (b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "two content-lengths"),
        (b"Content-Length: 3\r\ncontent-length: 3\r\n\r\nabc", ""),
        (b"Content-Length: 3, 4\r\n\r\nabcd", "content-length is no length"),
        (b"Content-Length: -1\r\n\r\nabcd", "content-length is no length"),
        (b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nabcd", "content-length is no length"),
        (b"Content-Length: \xb2\r\n\r\nabcd", "content-length is no length"),
        (b"Content-Length: 999999999999\r\n\r\nabcd", "cut short"),
    ],
)
def test_gor_with_lengths_that_lie(
    rest: bytes, problem: str, feed: Feed, tmp_path: Path, attack: Attack
) -> None:
    with attack("GoReplay: duplicate and impossible content-length"):
        (tmp_path / "r.gor").write_bytes(GOOD + GOR + HEAD + rest + MONKEYS + GOOD)
        found = feed(tmp_path / "r.gor")
        assert problem in found
        assert ("3 requests written" in found) == (not problem)


@pytest.mark.parametrize(
    "chunks",
    [
        b"",
        b"5\r\nab",
        b"ffffffff\r\nab\r\n0\r\n\r\n",
        b"fffffffff\r\nab",
        b"-1\r\nab\r\n0\r\n\r\n",
        b"2\r\nabcdef\r\n0\r\n\r\n",
        b"2\r\nab\r\n",
        b"zz\r\n",
        b"1;" + b"x" * 300_000,
        b"1\r\na\r\n" * 100_000,
    ],
)
def test_gor_with_chunks_that_lie(chunks: bytes, feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("GoReplay: chunked bodies that lie"):
        head = HEAD + b"Transfer-Encoding: gzip, Chunked\r\nContent-Length: 3\r\n\r\n"
        (tmp_path / "r.gor").write_bytes(GOOD + GOR + head + chunks + MONKEYS + GOOD)
        found = feed(tmp_path / "r.gor")
        assert "of the body" in found
        assert "2 requests written" in found


@pytest.mark.parametrize(
    "line",
    [
        "2024-13-45 99:99:99,1,1",
        "2024-01-01 00:00:00,-1,1",
        "2024-01-01 00:00:00,1" + "0" * 400 + ",1",
        "2024-01-01 00:00:00,1",
        "\0" * 2000,
        "x" * 10_000_000,
        "2024-01-01 00:00:00,\u0661,1",
    ],
)
def test_trace_with_wrong_lines(line: str, feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("trace: wrong lines"):
        path = tmp_path / "t.csv"
        path.write_text(f"{HEADER}\n2024-01-01 00:00:00,1,1\n{line}\n", encoding="utf-8")
        assert "malformed" in feed(path)


def no_file(folder: Path, kind: str) -> Path:
    """A path that is no file of requests."""
    path = folder / "strange.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "nowhere":
        path.symlink_to(folder / "none")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop", "nowhere", "none"])
def test_path_that_is_no_file_is_refused(kind: str, tmp_path: Path, attack: Attack) -> None:
    with attack("path: a pipe, folder, device or link to nowhere to read"):
        found = feed_child(no_file(tmp_path, kind), tmp_path)
        assert found.count("status 2") == len(list(commands("none", str(tmp_path))))


def test_link_to_a_recording_is_read(feed: Feed, tmp_path: Path, attack: Attack) -> None:
    with attack("path: a link to a recording", degraded="reading follows links; only writing does not"):
        (tmp_path / "link.jsonl").symlink_to(stored(tmp_path / "r.jsonl", [entry()]))
        assert "1 requests, no problems" in feed(tmp_path / "link.jsonl")


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "loop", "nowhere"])
def test_recorder_does_not_write_into_what_is_there(kind: str, tmp_path: Path, attack: Attack) -> None:
    with attack("path: a pipe, folder, device or link to record to"):
        recorder = Recorder(RecorderSettings(path=no_file(tmp_path, kind)))
        recorder.start()
        recorder.close()
        assert recorder.file == tmp_path / "strange-2.jsonl"
        assert recorder.counts.ended == "closed"
        assert main(["record", "convert", str(recorder.file), str(tmp_path / "strange.jsonl")]) == 2


def lines_of(count: int, **changed: object) -> Iterator[bytes]:
    """Lines whose times jump between the ends of the longest span that is sorted."""
    yield f"{HEADING}\n".encode()
    for number in range(count):
        yield f"{entry(id=number, t=119.0 * (number % 2), **changed)}\n".encode()


MEGABYTE = 1 << 20
BLOCK = GOR + HEAD + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1_000_000 + MONKEYS
BOMBS: dict[str, Callable[[], Iterable[bytes]]] = {
    "one line": lambda: (f"{HEADING}\n".encode(), *[b"\0" * MEGABYTE] * 128),
    "first line": lambda: [b" " * MEGABYTE] * 128,
    "empty lines": lambda: (f"{HEADING}\n".encode(), b"\n" * 20_000),
    "long requests": lambda: lines_of(80, headers=[["accept", "x" * 900_000]]),
    "many fields": lambda: lines_of(30, headers=[["a", ""]] * 15_000),
    "trace": lambda: (f"{HEADER}\n".encode(), *[b"x" * MEGABYTE] * 128),
    "gor": lambda: [BLOCK] * 125,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOMBS)
def test_bomb_is_read_in_bounded_memory(kind: str, tmp_path: Path, attack: Attack) -> None:
    with attack("gzip: a bomb, small packed and huge unpacked"):
        path = packed(tmp_path / "r.jsonl.gz", BOMBS[kind]())
        assert path.stat().st_size < 16 << 20
        assert feed_child(path, tmp_path)


def test_sorting_holds_a_bounded_part_of_a_file(
    tmp_path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attack("recording: long lines that all must wait to be sorted"):
        monkeypatch.setattr("autoglm_throttle.traffic.record.recording_reader.HELD_BYTES", 50_000)
        lines = [entry(id=n, t=119.0 * (n % 2), headers=[["accept", "x" * 1000]]) for n in range(500)]
        recording = open_recording(stored(tmp_path / "r.jsonl", lines))
        times = [one.t_s for one in recording.entries()]
        assert times == sorted(times)
        assert len(times) + recording.problems.count == 500
        assert any("out of order" in message for message in recording.problems.messages)
