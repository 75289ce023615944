"""``autoglm-throttle gateway``: its options, and SIGTERM to a real process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from autoglm_throttle._runtime import how_to_install
from autoglm_throttle.cli import gateway, main
from autoglm_throttle.settings import PREFIX
from tests.gateway.loopback import END_OF_CHUNKS, STREAM_HEAD, Exchange, RawUpstream, chunk
from tests.store.server import free_port

GET = b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n"
HANG_S = 60.0


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(f"{PREFIX}GPU", "none")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command hands to uvicorn."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(uvicorn, "run", lambda app, **options: found.update(options, app=app))
    return found


def test_every_fault_is_reported_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, served: dict[str, Any]
) -> None:
    monkeypatch.setenv(f"{PREFIX}USER_LIMIT", "many")
    words = ["--upstream", "ftp://a.test", "--upstream", "http://b.test/v1", "--port", "0", "--host", " "]
    assert main(["gateway", *words, "--drain-s", "1.5"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [re.sub(r"^autoglm-throttle gateway: (\S+): .*", r"\1", line) for line in lines] == [
        *("--port", "--host", "--drain-s", "--upstream", "--upstream", f"{PREFIX}USER_LIMIT"),
    ]
    assert "a whole number from 1 to 65535" in lines[0]
    assert "a whole number from 1 to 3600 s" in lines[2]
    assert "port 1 to 65535" in lines[3]
    assert not served


def test_command_without_upstream_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway"]) == 2
    assert "--upstream: at least one is needed" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["-1", "65536", "9" * 5000, "0x50", "\u0665"])
def test_port_out_of_range_is_rejected(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--upstream", "http://a.test", f"--port={text}"]) == 2
    assert "must be a whole number from 1 to 65535" in capsys.readouterr().err


def test_missing_package_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "find_spec", lambda name: None if name == "uvicorn" else name)
    assert main(["gateway", "--upstream", "http://a.test"]) == 2
    assert f"uvicorn must be installed: {how_to_install('gateway')}" in capsys.readouterr().err


def test_options_and_settings_reach_the_server(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "throttle.toml").write_text("slo_s = 7\n")
    monkeypatch.setenv(f"{PREFIX}USER_LIMIT", "5/minute")
    words = ["--upstream", "http://a.test", "--upstream", "http://b.test", "--host", "0.0.0.0"]
    more = ["--port", "81", "--drain-s", "3", "--config-file", str(tmp_path / "throttle.toml")]
    assert main(["gateway", *words, *more]) == 0
    assert (served["host"], served["port"], served["timeout_graceful_shutdown"]) == ("0.0.0.0", 81, 3)
    settings = served["app"].throttle.settings
    assert (settings.users.user_limit[0].limit, settings.concurrency.slo_s) == (5, 7.0)
    assert [str(upstream.url) for upstream in served["app"].upstreams] == ["http://a.test", "http://b.test"]


class Process:
    """The command in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port

    async def logged(self, text: bytes) -> None:
        """Return once it has logged a line with this text."""
        assert self.process.stderr is not None
        while line := await asyncio.wait_for(self.process.stderr.readline(), HANG_S):
            if text in line:
                return
        raise AssertionError("the process has ended")

    async def request(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(GET)
        return reader, writer


@asynccontextmanager
async def command(*words: str) -> AsyncIterator[Process]:
    port = free_port()
    options = ("-m", "autoglm_throttle", "gateway", "--port", str(port), *words)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *options, stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    try:
        found = Process(process, port)
        await found.logged(b"Uvicorn running on")
        yield found
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.server
@pytest.mark.slow
async def test_sigterm_lets_a_stream_end_and_refuses_new_ones() -> None:
    release = asyncio.Event()

    async def stream(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(b"first"))
        await release.wait()
        await exchange.send(chunk(b"last") + END_OF_CHUNKS)

    async with RawUpstream(stream) as upstream, command("--upstream", upstream.url) as found:
        reader, writer = await found.request()
        await reader.readuntil(chunk(b"first"))
        found.process.send_signal(signal.SIGTERM)
        await found.logged(b"Waiting for connections to close")
        with pytest.raises(ConnectionRefusedError):
            await found.request()
        release.set()
        assert await asyncio.wait_for(reader.read(), HANG_S) == chunk(b"last") + END_OF_CHUNKS
        assert await asyncio.wait_for(found.process.wait(), HANG_S) == -signal.SIGTERM
        writer.close()


@pytest.mark.server
@pytest.mark.slow
async def test_sigterm_ends_an_endless_stream_in_time() -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(b"first"))
        await exchange.peer_closed()

    async with RawUpstream(stream) as upstream:
        async with command("--upstream", upstream.url, "--drain-s", "1") as found:
            reader, writer = await found.request()
            await reader.readuntil(chunk(b"first"))
            found.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(reader.read(), HANG_S) == b""  # no end of the response
            assert await asyncio.wait_for(found.process.wait(), HANG_S) == -signal.SIGTERM
            writer.close()
        await asyncio.wait_for(upstream.ended.wait(), HANG_S)
