"""``record`` and ``replay``: a service is recorded; the file is inspected, converted and replayed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoglm_throttle.traffic.record import RecordedRequest
from autoglm_throttle.traffic.record.recorded_request import RecordingHeader, RecordingTrailer
from autoglm_throttle.traffic.report import dumps, make
from tests.cli.load_tests.conftest import Run, Start
from tests.servers.server import Server
from tests.traffic.page.drawn_page import shown
from tests.traffic.report.sample_runs import RUN_INFO, Sent, made

pytestmark = pytest.mark.xdist_group("load")

SECRET = "planted-secret-planted-secret-0123456789"
KEYS = ("--identity-header", "x-api-key", "--clients", "4")


def recording(path: Path, *entries: RecordedRequest) -> Path:
    lines = [RecordingHeader(start="2026-11-22T00:00:00+00:00", made_by="0").to_line()]
    lines += [entry.to_line() for entry in entries] + [RecordingTrailer("closed", 0).to_line()]
    path.write_text("\n".join(lines) + "\n")
    return path


def entry(number: int, t_s: float, **named: object) -> RecordedRequest:
    usual = {
        "method": "POST",
        "target": "/v1/predict",
        "status": 200,
        "ms": 5.0,
        "priority": "mid",
        "decision": "admitted",
    }
    return RecordedRequest(id=number, t_s=t_s, **(usual | named))  # type: ignore[arg-type]


@pytest.fixture
def recorded(start: Start, run: Run, tmp_path: Path) -> tuple[Path, Server]:
    """A recording of 100 requests, a part of which was limited, and the service behind the same throttle."""
    limits = {"GPU": "none", "POLICY": "fixed", "RATE_LOW_RPS": "20", "PRIORITY_HEADER_TRUST": "any"}
    settings = limits | {"KEY_SECRET": SECRET, "IDENTITY": "header:x-api-key"}
    file = tmp_path / "throttle.toml"
    file.write_text('record_body = "full"\n')
    recording = {"RECORD_PATH": str(tmp_path / "traffic.jsonl"), "CONFIG_FILE": str(file)}
    server = start(**settings, **recording)
    url = f"http://127.0.0.1:{server.port}/v1/predict"
    done = run("load", url, "--shape", "fixed:100:1s", "--quiet", *KEYS)
    assert done.status == 0, done.err
    server.stop()
    return tmp_path / "traffic.jsonl", start(**settings)


@pytest.mark.slow
@pytest.mark.server
def test_recording_is_inspected_and_replayed(recorded: tuple[Path, Server], run: Run) -> None:
    path, server = recorded
    told = run("record", "info", path, "--format", "json")
    assert told.status == 0, told.err
    assert (told.document["requests"], told.document["clients"]) == (100, 4)
    assert told.document["decisions"]["limited rate"] > 10
    assert told.document["end"] == {"reason": "closed", "dropped": 0}
    assert "requests   100 in" in run("record", "info", path).out
    checked = run("record", "check", path)
    assert (checked.status, checked.out) == (0, "100 requests, no problems\n")

    url = f"http://127.0.0.1:{server.port}"
    Path("b.json").write_text("{}")  # of requests that were refused nobody has read the body
    words = (
        "--body",
        "b.json",
        "--quiet",
        "--identity-header",
        "x-api-key",
        "--json",
        "r.json",
        "--slo",
        "error<1%",
    )
    done = run("replay", path, url, *words, "--check", "50%")
    assert done.status == 0, done.out + done.err
    assert "had a different outcome" in done.out
    document = json.loads(Path("r.json").read_text())
    found = document["replay"]
    assert found["requests"] == document["load"]["planned"] == 100
    assert found["decisions"]["limited"]["recorded"] == told.document["decisions"]["limited rate"]
    assert document["load"]["arrivals"] == "recorded"
    assert document["load"]["shape"].startswith(str(path))

    fast = run("replay", path, url, *words, "--speed", "20", "--sample", "50%", "--loop", "2", "--dry-run")
    assert fast.status == 0
    assert f"nothing is sent; the target would be {url}" in fast.out


@pytest.mark.slow
@pytest.mark.server
def test_replay_with_other_outcomes_fails_its_check(service: Server, run: Run, tmp_path: Path) -> None:
    refused = {"status": 429, "decision": "limited", "reason": "rate"}
    path = recording(tmp_path / "r.jsonl", *(entry(number, number / 50, **refused) for number in range(20)))
    url = f"http://127.0.0.1:{service.port}"
    done = run("replay", path, url, "--quiet", "--check", "0.5", "--json", "r.json", "--html", "r.html")
    assert done.status == 1
    assert done.out.splitlines()[1] == "failed: --check 50.00%"
    verdict = json.loads(Path("r.json").read_text())["verdict"]
    assert (verdict["status"], [one["holds"] for one in verdict["objectives"]]) == (1, [False])
    assert [part.get("class") for part in shown(Path("r.html").read_text()).iter("section")] == [
        "verdict bad"
    ]
    assert "20 of 20 requests (100.00 %) had a different outcome" in done.out
    assert run("replay", path, url, "--quiet", "--check", "1").status == 0


@pytest.mark.slow
@pytest.mark.server
def test_recording_without_responses_cannot_be_compared(service: Server, run: Run, tmp_path: Path) -> None:
    path = recording(
        tmp_path / "r.jsonl", *(entry(number, number / 50, status=0, decision="") for number in range(5))
    )
    done = run("replay", path, f"http://127.0.0.1:{service.port}", "--quiet")
    assert done.status == 0
    assert "the file contains no responses to compare with" in done.out
    assert run("replay", path, f"http://127.0.0.1:{service.port}", "--quiet", "--check", "1").status == 1


def test_all_wrong_options_of_replay_are_listed(run: Run) -> None:
    wrong = (
        "--speed",
        "0",
        "--rate",
        "x",
        "--loop",
        "0",
        "--duration",
        "x",
        "--max-gap",
        "-1",
        "--sample",
        "2",
    )
    more = ("--from", "x", "--to", "y", "--body", "nowhere", "--check", "x", "--timeout", "0")
    done = run("replay", "nowhere.jsonl", "http://192.0.2.1", *wrong, *more)
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert all(line.startswith("autoglm-throttle replay: ") for line in lines)
    told = {line.split(": ")[1] for line in lines}
    assert told >= {word for word in (*wrong, *more) if word.startswith("--")} | {"FILE", "URL"}


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--loop", "forever"), "selection: a replay that goes on forever needs a duration"),
        (("--speed", "2", "--rate", "5"), "selection: speed and rate cannot both be given"),
        (("--from", "5s", "--to", "1s"), "selection: an interval begins"),
        (("--fill", "--slo", "p99@peak<1s"), "no such segment"),
        ((), "1 requests have a body that was not recorded"),
        (("--fill", "--body", "r.jsonl"), "--fill: missing bodies are filled"),
    ],
)
def test_replay_of_impossible_selections_is_rejected(
    words: tuple[str, ...], fault: str, run: Run, tmp_path: Path
) -> None:
    path = recording(tmp_path / "r.jsonl", entry(1, 0.0, body_len=7), entry(2, 1.0))
    done = run(
        "replay",
        path,
        "http://127.0.0.1:9",
        *words,
    )
    assert (done.status, done.out) == (2, "")
    assert fault in done.err


def test_forbidden_data_in_a_recording_is_found_and_not_shown(run: Run, tmp_path: Path) -> None:
    path = recording(
        tmp_path / "r.jsonl",
        entry(1, 0.0, headers=(("authorization", f"Bearer {SECRET}"),)),
        entry(2, 0.1, client=SECRET),
    )
    done = run("record", "check", path)
    assert done.status == 1
    assert "line 2, headers: authorization identifies the caller" in done.out
    assert SECRET not in done.out
    found = run("record", "check", path, "--format", "json")
    assert (found.status, found.document["ok"], found.document["entries"]) == (1, False, 2)
    assert found.document["count"] == sum(found.document["sorts"].values()) == 2


@pytest.mark.parametrize("command", ["info", "check"])
def test_file_that_is_no_recording_is_rejected(command: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nonsense\n")
    done = run("record", command, "x")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("autoglm-throttle record: x: no recording of this library")
    assert run("record", command, "nowhere").status == 2


def test_truncated_recording_is_reported(run: Run, tmp_path: Path) -> None:
    path = recording(tmp_path / "r.jsonl", entry(1, 0.0), entry(2, 2.0))
    text = path.read_text().splitlines()
    path.write_text("\n".join(text[:2]) + '\n{"v":1,"t":5')
    done = run("record", "info", path, "--format", "json")
    assert (done.status, done.document["end"], done.document["faults"]["count"]) == (0, None, 1)


def gor(path: Path, *requests: str) -> Path:
    """A file of GoReplay with a request each quarter of a second."""
    end = "\n\U0001f435\U0001f648\U0001f649\n"
    blocks = (f"1 {n} {n * 250_000_000} 0\n{text}{end}" for n, text in enumerate(requests))
    path.write_text("".join(blocks), "utf-8", newline="")
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_goreplay_is_imported(name: str, run: Run, tmp_path: Path) -> None:
    gor(tmp_path / "r.gor", *["GET /a HTTP/1.1\r\nx-priority: high\r\n\r\n"] * 4)
    out = run("record", "convert", "r.gor", name)
    assert (out.status, out.err) == (0, "")
    assert out.out.startswith("4 requests written")
    told = run("record", "info", name, "--format", "json").document
    assert (told["requests"], told["span_s"]) == (4, 0.75)


def test_an_import_is_redacted(run: Run, tmp_path: Path) -> None:
    fields = f"Authorization: {SECRET}\r\nX-Trace: t\r\nAccept: */*\r\nContent-Length: 2\r\n"
    gor(tmp_path / "t.gor", f"POST http://x/users/7?key={SECRET}&keep=1 HTTP/1.1\r\n{fields}\r\nhi")
    kept = (
        "--allow-header",
        "x-trace",
        "--keep-query",
        "keep",
        "--mask-path",
        "/users/{id}",
        "--bodies",
        "full",
    )
    done = run("record", "convert", "t.gor", "r.jsonl", *kept)
    assert done.status == 0, done.err
    text = (tmp_path / "r.jsonl").read_text()
    assert SECRET not in text
    found = json.loads(text.splitlines()[1])
    assert found["target"] == "/users/*?*=*&keep=1"
    assert found["body_b64"] == "aGk="
    assert ["x-trace", "t"] in found["headers"]


def test_masking_a_path_keeps_the_other_data(run: Run, tmp_path: Path) -> None:
    one = entry(1, 0.0, target="/users/7?keep=1&*=*", headers=(("x-trace", "t"), ("accept", "a")))
    path = recording(tmp_path / "r.jsonl", one)
    lines = path.read_text().splitlines(keepends=True)
    said = json.loads(lines[0])
    said["redaction"] = {"headers": ["accept", "x-trace", "cookie"], "query": ["keep"], "paths": []}
    path.write_text("".join([json.dumps(said) + "\n", *lines[1:]]))
    done = run("record", "convert", path, "s.jsonl", "--mask-path", "/users/{id}")
    assert (done.status, done.err) == (0, "")
    assert "of 1 requests a part of the URL was left out or masked" in done.out
    found = json.loads((tmp_path / "s.jsonl").read_text().splitlines()[1])
    assert found["target"] == "/users/*?keep=1&*=*"
    assert found["headers"] == [["x-trace", "t"], ["accept", "a"]]
    done = run("record", "convert", path, "t.jsonl", "--allow-header", "x-none")
    found = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[1])
    assert (found["target"], found["headers"]) == ("/users/7?keep=1&*=*", [["accept", "a"]])
    assert "1 header fields were left out" in done.out


def test_all_wrong_options_of_convert_are_listed(run: Run, tmp_path: Path) -> None:
    recording(tmp_path / "r.jsonl", entry(1, 0.0, body_len=5))
    done = run("record", "convert", "r.jsonl", "o", "--bodies", "x", "--mask-path", "/x")
    assert (done.status, done.out) == (2, "")
    told = {line.split(": ")[1] for line in done.err.splitlines()}
    assert told == {"--bodies", "--allow-header, --mask-path"}
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            dumps(make(made([Sent()]), RUN_INFO)),
            "FILE: x.json is a report, not a recording: see load compare",
        ),
        ('{"method": "GET", "url": "http://x/"}\n', "x.json: no recording of this library"),
    ],
)
def test_similar_files_are_rejected_with_a_remedy(text: str, fault: str, run: Run) -> None:
    Path("x.json").write_text(text)
    done = run("replay", "x.json", "http://127.0.0.1:9")
    assert (done.status, done.out) == (2, "")
    assert fault in done.err
