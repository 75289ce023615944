"""``load`` against a real service, each way it can end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autoglm_throttle.traffic.record import RecordedRequest, RecordingHeader
from autoglm_throttle.traffic.trace import HEADER
from tests.cli.load_tests.conftest import LENIENT, Done, Run, Start, finished, process
from tests.servers.server import Server
from tests.traffic.page.drawn_page import shown

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.xdist_group("load")]

SOON = ("--shape", "fixed:100:1s", "--quiet")
FULL = ("--slo", "p99<30s,error<1%,rps>=5/s")


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_exit_0_if_all_objectives_hold(url: str, tmp_path: Path) -> None:
    told, page = tmp_path / "r.json", tmp_path / "r.html"
    words = ("--shape", "step:50,100:1s", "--json", told, "--html", page, "--header", "authorization: s3cr3t")
    done = finished(process("load", url, *words, *FULL, code=LENIENT))
    assert (done.status, done.err) == (0, f"{told} is written\n{page} is written\n")
    assert "all objectives hold" in done.out
    assert done.out.startswith(f"{url.split('/')[2]}, step:50,100:1s\n")
    document = json.loads(told.read_text())
    assert document["verdict"]["status"] == 0
    assert document["totals"]["classes"]["ok"] == document["totals"]["planned"] == 150
    assert [part["name"] for part in document["segments"]] == ["50/s", "100/s"]
    assert document["load"]["shape"] == "step:50,100:1s"
    assert document["load"]["mix"] == {"high": 10.0, "mid": 30.0, "low": 60.0}
    assert document["about"]["command"].startswith(f"autoglm-throttle load {url} --shape step:50,100:1s")
    assert list(shown(page.read_text()).iter("svg"))
    assert "s3cr3t" not in told.read_text() + page.read_text() + done.out


def test_exit_1_if_an_objective_failed(url: str) -> None:
    done = finished(process("load", url, *SOON, "--slo", "p99<10us,error<1%", code=LENIENT))
    assert done.status == 1
    assert "p99<10us" in done.out.splitlines()[1]


def test_exit_1_if_no_request_succeeded(url: str, run: Run) -> None:
    done = run("load", url.replace("/v1/predict", "/nowhere"), *SOON)
    assert done.status == 1
    verdict = "failed: 0 of 100 requests succeeded (100 x 404): check the URL and the method"
    assert done.out.splitlines()[1] == verdict


# FIELD.md, row 35
def test_exit_1_if_nearly_all_requests_were_rejected(start: Start, run: Run) -> None:
    service = start(USER_LIMIT="2/minute")
    words = ("load", f"http://127.0.0.1:{service.port}/v1/predict", *SOON)
    for slo in ((), ("--slo", "p99<30s,error<1%")):
        done = run(*words, *slo)
        assert done.status == 1, done.out
        assert "of 100 requests succeeded" in done.out.splitlines()[1]
    assert run(*words, "--slo", "limited>=90%").status == 0


def test_exit_2_without_a_listening_service() -> None:
    port = closed_port()
    done = finished(process("load", f"http://127.0.0.1:{port}", *SOON))
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("autoglm-throttle load: ")
    assert f"127.0.0.1:{port}" in done.err


def test_exit_2_lists_every_wrong_argument(run: Run) -> None:
    done = run("load", "ftp://x", "--shape", "x", "--mix", "y", "--timeout", "0")
    assert (done.status, done.out) == (2, "")
    lines = done.err.splitlines()
    assert all(line.startswith("autoglm-throttle load: ") for line in lines)
    assert {line.split(": ")[1] for line in lines} == {"URL", "--shape", "--mix", "--timeout"}


def test_exit_2_for_another_machine_without_yes(run: Run) -> None:
    done = run("load", "http://192.0.2.1/", *SOON)
    assert (done.status, done.out) == (2, "")
    assert done.err == (
        "autoglm-throttle load: URL: 192.0.2.1 is not this machine: add --yes if you may load it\n"
    )


def test_exit_2_if_the_package_of_the_extra_is_missing(url: str) -> None:
    done = finished(process("load", url, *SOON, code="import sys; sys.modules['httptools'] = None"))
    assert (done.status, done.out) == (2, "")
    assert "this needs httptools: pip install" in done.err
    assert "Traceback" not in done.err


def test_exit_3_if_the_generator_is_too_slow(url: str) -> None:
    """Five requests in a microsecond: no interpreter can, although most are only dropped."""
    done = finished(
        process(
            "load",
            url,
            "--shape",
            "fixed:5000000:40ms",
            "--max-inflight",
            "20",
            "--slo",
            "done<=1",
            "--quiet",
        )
    )
    assert done.status == 3
    assert done.out.splitlines()[1].startswith("not valid: ")


def interrupted(*words: object, times: int = 1) -> tuple[int, str]:
    """Run a command on a terminal and press Ctrl-C once its progress shows; its status and output."""
    command = (sys.executable, "-m", "autoglm_throttle", *map(str, words))
    master, terminal = os.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, text=True) as child:
        os.close(terminal)
        seen = b""
        while b"sent" not in seen:
            seen += os.read(master, 1000)
        for _ in range(times):
            child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=120)
    os.close(master)
    return child.returncode, out


def test_exit_130_after_ctrl_c(url: str, tmp_path: Path) -> None:
    told, page = tmp_path / "r.json", tmp_path / "r.html"
    words = ("--shape", "fixed:50:60s", "--json", told, "--html", page)
    status, out = interrupted("load", url, *words, times=2)
    assert status == 130
    assert "interrupted" in out
    document = json.loads(told.read_text())
    assert document["verdict"]["aborted"] is True
    assert 0 < document["totals"]["unsent"] < document["totals"]["planned"] == 3000
    assert "Interrupted" in [one.text for one in shown(page.read_text()).iter("strong")]


def test_exit_130_after_ctrl_c_in_a_peak_search(url: str, tmp_path: Path) -> None:
    told = tmp_path / "r.json"
    status, out = interrupted("load", url, "--find-peak", "20:40:60s", "--slo", "p99<1s", "--json", told)
    assert status == 130
    assert "peak: stopped before the end; no rate was measured" in out
    assert json.loads(told.read_text())["verdict"]["aborted"] is True


def test_a_dry_run_sends_nothing(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        done = run(
            "load",
            f"{address}/base",
            "--shape",
            "step:10,20:2s",
            "--dry-run",
            "--slo",
            "p99<1s,error<1%",
            "--clients",
            "7",
            "--route",
            "POST /a=3",
            "--route",
            "GET /b",
        )
        assert (done.status, done.err) == (0, "")
        assert f"nothing is sent; the target would be {address}/base" in done.out
        assert "75.0% POST /base/a\n  25.0% GET /base/b" in done.out
        assert "objectives: p99<1s, error<1%\n7 clients, which the service cannot distinguish" in done.out
        assert "10/s" in done.out
        assert [line.split()[:2] for line in done.out.splitlines()[-4:]] == [
            ["0", "10"],
            ["1", "10"],
            ["2", "20"],
            ["3", "20"],
        ]
        users = run("load", address, "--shape", "users:3:2s", "--dry-run")
        assert "no objectives: set them with --slo\n1 client\n 100.0% POST /\n3 users for 2 s" in users.out
        search = run("load", address, "--find-peak", "10:20:3s", "--slo", "p99<1s", "--dry-run")
        assert "trials of 3 s at 10/s, 20/s and rates between them" in search.out
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_objective_of_an_unknown_segment_is_rejected(url: str, run: Run) -> None:
    done = run("load", url, *SOON, "--slo", "p99@peak<1s")
    assert (done.status, done.out) == (2, "")
    assert "no such segment: p99@peak<1s" in done.err


def test_routes_costs_and_callers(url: str, run: Run, tmp_path: Path) -> None:
    base = url.removesuffix("/predict")
    (tmp_path / "r.jsonl").write_text('{"target": "/predict"}\n{"target": "/generate", "cost": 4}\n')
    words = ("--requests", str(tmp_path / "r.jsonl"), "--clients", "5")
    done = run("load", base, *SOON, *words, "--format", "json", "--arrivals", "poisson", "--seed", "7")
    assert done.status == 0
    found = done.document
    assert found["generator"]["cpu_share"] < 1.0
    assert found["load"]["requests"] == ["POST /predict", "POST /generate"]
    assert (found["load"]["arrivals"], found["load"]["seed"], found["load"]["clients"]) == ("poisson", 7, 5)
    costs = [part["tally"]["cost"]["planned"] / part["tally"]["planned"] for part in found["requests"]]
    assert costs == [1.0, 4.0]
    assert found["totals"]["statuses"] == {"200": found["totals"]["planned"]}


def test_closed_loop_of_users(url: str, run: Run) -> None:
    done = run("load", url, "--shape", "users:5:1s:50ms", "--quiet", "--format", "json")
    assert done.status == 0
    assert done.document["load"]["loop"] == "closed"
    assert 5 <= done.document["totals"]["classes"]["ok"] <= 105


def test_a_trace_of_token_numbers(url: str, run: Run, tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:15:4{second}.6805900,{100 + second},{5 + second}" for second in range(5)]
    (tmp_path / "t.csv").write_text("\r\n".join([HEADER, *rows]))
    words = ("--quiet", "--format", "json")
    done = run("load", url.removesuffix("/v1/predict"), "--shape", "trace:t.csv", "--speed", "10", *words)
    assert done.status == 0
    assert done.document["load"]["planned"] == 5
    assert done.document["load"]["duration_s"] == pytest.approx(0.4)
    assert set(done.document["load"]["requests"]) == {"POST /v1/predict"}
    dry = run("load", url, "--shape", "trace:t.csv", "--rate", "1", "--dry-run")
    assert "5 distinct requests, from the trace" in dry.out
    assert "4 s" in dry.out


def test_the_times_of_a_recording(url: str, run: Run, tmp_path: Path) -> None:
    lines = [
        RecordedRequest(id=number, t_s=number / 4, method="GET", target="/other").to_line()
        for number in range(5)
    ]
    (tmp_path / "r.jsonl").write_text("\n".join([RecordingHeader().to_line(), *lines]) + "\n")
    done = run("load", url, "--shape", "trace:r.jsonl", "--rate", "8", "--quiet", "--format", "json")
    assert done.status == 0, done.err
    assert done.document["load"]["requests"] == ["POST /v1/predict"]
    assert (done.document["load"]["planned"], done.document["load"]["duration_s"]) == (5, 0.5)


def test_missing_trace_is_reported(url: str, run: Run) -> None:
    done = run("load", url, "--shape", "trace:nowhere.csv", "--quiet")
    assert done.status == 2
    assert "nowhere.csv" in done.err


def test_two_reports_side_by_side(url: str, run: Run, tmp_path: Path) -> None:
    for name, rate in (("a", 40), ("b", 80)):
        assert (
            run("load", url, "--shape", f"fixed:{rate}:500ms", "--quiet", "--json", f"{name}.json").status
            == 0
        )
    done = run("load", "compare", "a.json", "b.json")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("A: 127.0.0.1:")
    assert "note: not the same shape: fixed:40:500ms and fixed:80:500ms" in done.out
    rows = run("load", "compare", "a.json", "b.json", "--format", "json").document["rows"]
    assert next(row["ratio"] for row in rows if row["metric"] == "answers") == pytest.approx(2.0)


def test_compare_rejects_files_that_are_no_reports(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "y.json").write_bytes(b"\xff")
    done = run("load", "compare", "x.json", "nowhere.json", "--format", "xml")
    assert done.status == 2
    assert "compare: x.json: this is no report" in done.err
    assert "compare: nowhere.json: No such file" in done.err
    assert "--format: 'xml'" in done.err
    assert "y.json: not a text" in run("load", "compare", "y.json", "y.json").err
    assert "takes only --format, not --quiet" in run("load", "compare", "y.json", "y.json", "--quiet").err
    assert "takes the JSON of two reports" in run("load", "compare", "x.json").err
    assert "takes the JSON of two reports" in run("load", "--format", "json", "compare", "x.json").err
    assert "one service is loaded at a time" in run("load", "http://a", "http://b").err


def test_peak_search_finds_the_highest_rate(url: str, run: Run) -> None:
    words = ("--find-peak", "100:800:700ms", "--slo", "p99<500ms,error<1%", "--quiet", "--json", "peak.json")
    done = run("load", url, *words)
    assert done.status == 0, done.err
    last = done.out.splitlines()[-1]
    assert last.startswith("peak: the objectives hold at ")
    rate_rps = float(last.split()[5].removesuffix("/s"))
    assert 100.0 <= rate_rps < 800.0, "a backlog of 0.7 s is left at twice the capacity"
    document = json.loads(Path("peak.json").read_text())
    assert document["load"]["planned"] == pytest.approx(0.7 * rate_rps, abs=1.0)
    assert document["verdict"]["status"] == 0
    assert document["title"].endswith(last.removeprefix("peak: "))
    assert f"{rate_rps:g}/s: all objectives hold (goodput " in done.err
    assert any(line.split()[:2] == [f"{rate_rps:g}/s", "holds"] for line in done.out.splitlines())
    assert "(429)" not in done.out


def test_peak_search_fails_at_the_lowest_rate(url: str, run: Run) -> None:
    done = run("load", url, "--find-peak", "10:20:200ms", "--slo", "p99<1us", "--quiet")
    assert done.status == 1
    assert "the objectives do not hold even at 10/s" in done.out


def asked(service: Server) -> int:
    """Requests that the device was given."""
    return int(json.loads(service.get("/sim/state").body)["submitted"])


def test_run_continues_after_the_watched_process_ends(url: str, run: Run, service: Server) -> None:
    def attempt() -> Done:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as watched:
            before, pause = asked(service), threading.Event()

            def kill_once_it_was_seen() -> None:
                while asked(service) == before:
                    pause.wait(0.02)
                pause.wait(1.3)
                watched.kill()

            killer = threading.Thread(target=kill_once_it_was_seen)
            killer.start()
            words = ("--watch", watched.pid)
            done = run("load", url, "--shape", "fixed:20:3s", "--quiet", "--format", "json", *words)
            killer.join()
            assert f"not monitored: process {watched.pid} has ended" in done.err
        return done

    done = attempt()
    assert done.status == 0
    assert 1 <= len(done.document["watched"]) <= 3
    assert all(row["rss_bytes"] > 0 for row in done.document["watched"])
    assert done.document["totals"]["classes"]["ok"] == 60


def test_report_contains_metrics_of_a_throttle(start: Start, run: Run) -> None:
    server = start(GPU="none", POLICY="fixed", RATE_LOW_RPS="5")
    words = ("--metrics", f"http://127.0.0.1:{server.port}", "--mix", "high=20,low=80", "--html", "r.html")
    done = run(
        "load",
        f"http://127.0.0.1:{server.port}/v1/predict",
        "--shape",
        "fixed:50:2s",
        "--quiet",
        "--format",
        "json",
        *words,
    )
    assert (done.status, done.err) == (0, "")
    found = done.document
    assert found["priorities"]["high"]["classes"]["ok"] == found["priorities"]["high"]["planned"]
    assert found["priorities"]["low"]["classes"]["limited"] > 40
    assert found["priorities"]["low"]["reasons"] == {
        "rate:low": found["priorities"]["low"]["classes"]["limited"]
    }
    assert all(row["factor_ratio"] == 1.0 and "inflight" in row for row in found["watched"])
    assert 1 <= len(found["watched"]) <= 3
    assert Path("r.html").is_file()


def test_report_is_printed_if_its_file_cannot_be_written(
    url: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    done = run("load", url, "--shape", "fixed:20:200ms", "--quiet", "--json", "r.json")
    assert done.status == 2
    assert done.err == "r.json cannot be written: No space left on device\n"
    assert "objectives" in done.out


def test_peak_of_a_user_limit_is_noted(start: Start, run: Run) -> None:
    server = start(GPU="none", POLICY="fixed", RATE_LOW_RPS="5")
    url = f"http://127.0.0.1:{server.port}/v1/predict"
    words = ("--mix", "low=100", "--find-peak", "40:80:500ms", "--slo", "goodput>0.9", "--quiet")
    done = run("load", url, *words, "--clients", "3")
    assert done.status == 1
    assert "rejected by a limit of the caller (429)" in done.out
    assert "limited" in next(line for line in done.out.splitlines() if line.startswith("trial "))
    assert done.err.startswith(
        "note: 3 clients, which the service cannot distinguish without --identity-header"
    )


def test_unreachable_metrics_fail_before_the_run(url: str, run: Run) -> None:
    done = run("load", url, *SOON, "--metrics", f"http://127.0.0.1:{closed_port()}")
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("autoglm-throttle load: --metrics: metrics of 127.0.0.1:")
    assert "cannot be reached" in done.err
