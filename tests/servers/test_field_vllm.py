"""The benchmark with a real vLLM: what it does without one, its clients, its figures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import vllm
from benchmarks.vllm_cases import clients, environment

REJECTED = b"HTTP/1.1 503 Busy\r\nretry-after: 30\r\nretry-after-ms: 1\r\ncontent-length: 2\r\n\r\n{}"
BEGUN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\n: hi\r\n\r\n8\r\ndata: x\n\r\n"
STREAMED = BEGUN + b'18\r\n"finish_reason":"length"\r\n0\r\n\r\n'
CUT = BEGUN + b"0\r\n\r\n"
BUSY = BEGUN + b'1d\r\ndata: {"error": {"code": 503}}\r\n0\r\n\r\n'
ERROR = b"HTTP/1.1 500 Error\r\ncontent-length: 0\r\n\r\n"


def last_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    monkeypatch.delenv("VLLM_ENV", raising=False)
    monkeypatch.setattr(sys, "argv", ["vllm", *options])
    vllm.main()
    return capsys.readouterr().out.splitlines()[-1]


def test_without_vllm_the_last_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert last_line(monkeypatch, capsys) == vllm.SKIPPED
    assert last_line(monkeypatch, capsys, "--vllm", str(tmp_path)) == vllm.SKIPPED


def test_environment_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise subprocess.CalledProcessError(1, ["pip"])

    monkeypatch.setattr(environment, "make", fail)
    assert not vllm.ready(tmp_path / "new")
    assert "cannot be made: Command '['pip']' returned" in capsys.readouterr().out


def test_requirements_are_those_for_text() -> None:
    lines = [
        "torch==2.13.0",
        "numpy",
        "torchvision; x == 'y'",
        "ray; extra == 'ray'",
        "Torchaudio>1",
        "xgrammar>=1",
    ]
    assert [*environment.required(lines)] == ["numpy", "xgrammar>=1"]


def test_made_environment_has_the_command_and_the_marker(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").touch()
    assert not environment.has_vllm(tmp_path)
    (tmp_path / "lib/python3.11/site-packages/vllm-0.32.0+cpu.dist-info").mkdir(parents=True)
    assert environment.has_vllm(tmp_path)


async def answered(answers: list[bytes]) -> clients.Counts:
    """Counts of one client whose requests get these answers; the connection ends after the last."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answers:
            await reader.readexactly(len(clients.request(clients.TOKENS, "")))
            writer.write(answers.pop(0))
        done.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    counts = clients.Counts()
    async with server:
        caller = clients.Caller(server.sockets[0].getsockname()[1], counts)
        now = asyncio.get_running_loop().time()
        looping = asyncio.create_task(caller.loop(now, now + 60.0))
        await done.wait()
        while not counts.losses:  # noqa: ASYNC110 - the client counts the end of the connection, or the error
            await asyncio.sleep(0)
        looping.cancel()
        caller.close()
    return counts


async def test_client_waits_the_told_milliseconds_and_reads_streams_to_their_end() -> None:
    counts = await answered([REJECTED, STREAMED, STREAMED])
    assert (counts.rejected, len(counts.ends_s), counts.pauses_s) == (1, 2, [0.001])
    assert all(first > 0.0 for first in counts.first_token_s)


@pytest.mark.parametrize(
    ("answer", "reason"), [(ERROR, "500"), (CUT, ": hi\r\n\r\ndata: x\n\r\n"), (b"", "IncompleteReadError")]
)
async def test_lost_requests_are_no_rejections_and_are_counted_by_reason(answer: bytes, reason: str) -> None:
    counts = await answered([answer])
    assert (counts.rejected, counts.ends_s) == (0, [])
    assert [*counts.losses] == [reason]


async def test_rejection_within_a_stream_is_counted_apart() -> None:
    counts = await answered([BUSY, ERROR])
    assert (counts.rejected, counts.rejected_in_stream, counts.ends_s, counts.losses) == (
        0,
        1,
        [],
        {"500": 1},
    )


def test_untold_rejection_pauses_half_a_second() -> None:
    assert clients.Head(503, {}).pause_s == 0.5
    assert clients.Head(503, {"retry-after": "2"}).pause_s == 2.0


def rows(rps: float, first_s: float, rejected: int = 0, **high: int) -> list[vllm.Figures]:
    ends = [0.1] * round(rps)
    counts = clients.Counts(ends_s=ends, first_token_s=[first_s] * len(ends), rejected=rejected)
    if high:
        counts.first_token_of_high_s = [first_s] * high["served"]
        counts.rejected_of_high = high["shed"]
    return [counts.figures(1.0)]


LIMITS = {
    "limit 9": rows(28, 0.1, 80),
    "limit 12": rows(30, 0.2, 70),
    "limit 16": rows(32, 0.4, 64),
    "limit 32": rows(31, 0.9, 31),
}
LOW = {"alone": rows(20, 0.02), "ours": rows(19, 0.03)}
SEEN: dict[str, vllm.Seen] = {
    "8x": {"alone": rows(30, 2.0), **LIMITS, "ours": rows(32, 0.2, 32)},
    "8x, priorities": {
        "limit 16": rows(32, 0.4, 64, served=3, shed=60),
        "ours": rows(32, 0.1, 32, served=10, shed=0),
        "ours, priority": rows(32, 0.3, 32, served=9, shed=1),
    },
    "0.5x": LOW,
    "1x": LOW,
}


def test_bars_compare_with_the_best_limit_of_vllm() -> None:
    found = vllm.bars(SEEN, 0.0)
    assert vllm.best(SEEN["8x"]) == "limit 16"
    assert [round(bar.value, 3) for bar in found] == [
        1,
        0.5,
        0.5,
        0.25,
        1,
        0.75,
        0.9,
        0.95,
        1.5,
        0.95,
        1.5,
        0,
    ]
    missed = [bar.text for bar in found if not bar.met]
    assert [text.split(":")[0] for text in missed] == ["8x", "8x", "0.5x", "0.5x", "1x", "1x"]
    assert not vllm.bars(SEEN, float("nan"))[-1].met


def test_table_has_a_row_for_each_load_and_server() -> None:
    kept = {
        "date": "2026-01-02",
        "processor": "a processor",
        "cores": 2,
        "python": "3.11.7",
        "versions": {},
        "tokens": 120,
        "rounds": 1,
        "medians": {name: vllm.medians(seen) for name, seen in SEEN.items()},
    }
    lines = vllm.part(kept).splitlines()
    assert "| 8x | ours | 32.0 | 32.0 | 0.20 s | 0.20 s | 1.00 | - | - |" in lines
    assert (
        "| 8x, priorities | ours, priority | 32.0 | 32.0 | 0.30 s | 0.30 s | 1.00 | 0.30 s | 0.90 |" in lines
    )
    assert len(lines) == 2 + 6 + 3 + 4 + 2


async def test_clients_state_priorities_one_three_six(monkeypatch: pytest.MonkeyPatch) -> None:
    stated: list[str] = []

    async def loop(caller: clients.Caller, began_s: float, until_s: float) -> None:
        stated.append(caller.priority)

    monkeypatch.setattr(clients.Caller, "loop", loop)
    await clients.run(1, 20, 1.0, mixed=True)
    assert {name: stated.count(name) for name in set(stated)} == {"high": 2, "mid": 6, "low": 12}
    stated.clear()
    await clients.run(1, 2, 1.0)
    assert stated == ["", ""]
