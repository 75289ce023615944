"""The benchmark with a real vLLM: what it does without one, its clients, its figures."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from benchmarks import vllm
from benchmarks.vllm_cases import clients

REJECTED = b"HTTP/1.1 503 Busy\r\nretry-after: 30\r\nretry-after-ms: 1\r\ncontent-length: 2\r\n\r\n{}"
BEGUN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\n: hi\r\n\r\n8\r\ndata: x\n\r\n"
STREAMED = BEGUN + b'18\r\n"finish_reason":"length"\r\n0\r\n\r\n'
CUT = BEGUN + b"0\r\n\r\n"
BUSY = BEGUN + b'1d\r\ndata: {"error": {"code": 503}}\r\n0\r\n\r\n'
ERROR = b"HTTP/1.1 500 Error\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize("folder", [None, "nowhere"])
def test_without_vllm_the_last_line_says_so(
    folder: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VLLM_ENV", raising=False)
    monkeypatch.setattr(sys, "argv", ["vllm", *(["--vllm", folder] if folder else [])])
    vllm.main()
    assert capsys.readouterr().out.splitlines()[-1] == vllm.SKIPPED


async def answered(answers: list[bytes]) -> clients.Counts:
    """Counts of one client whose requests get these answers; the connection ends after the last."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while answers:
            await reader.readexactly(len(clients.REQUEST))
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


def rows(rps: float, first_s: float) -> list[dict[str, float]]:
    ends = [0.1] * round(rps)
    counts = clients.Counts(ends_s=ends, first_token_s=[first_s] * len(ends))
    return [counts.figures(1.0)]


def test_bars_compare_with_the_own_limit_of_vllm() -> None:
    seen = {"alone": rows(30, 2.0), "ours": rows(30, 0.5), "own limit": rows(32, 0.4)}
    rps, first = vllm.bars(seen)
    assert (rps.value, rps.verdict) == (30 / 32, "MISSED")
    assert (round(first.value, 6), first.verdict) == (1.25, "met")
    assert vllm.medians(seen)["ours"]["rps"] == 30


def test_figures_of_the_code_before_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.harness.RESULTS", tmp_path)
    before = vllm.merged({"clients": 1}, before=True)
    (tmp_path / "vllm.json").write_text(json.dumps(before))
    assert vllm.merged({"clients": 2}, before=False) == {"clients": 2, "before": {"clients": 1}}
