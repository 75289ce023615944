"""The generator over TLS, against a server whose certificate signed itself."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import StreamReader as Reader
from asyncio import StreamWriter as Writer
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.generator import ClientOptions, OpenLoopSender, TargetUrl, TlsOptions
from autoglm_throttle.traffic.generator.launch import run_on_loop
from autoglm_throttle.traffic.plan import Arrivals, LoadShape, PriorityMix, make_plan
from autoglm_throttle.traffic.request_log import RequestResult
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.results import Result
from tests.traffic.scripted_server import OK, ScriptedServer, Serve, always, once, request

CERTIFICATE = Path(__file__).with_name("tls") / "localhost.pem"
BRISK = ClientOptions(connections=2, timeout_s=5.0, drain_s=5.0)


async def drive(serve: Serve, **tls: Any) -> Result:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with ScriptedServer(serve, context) as server:
        target = TargetUrl.parse(f"https://127.0.0.1:{server.port}", tls=TlsOptions(**tls))
        made = make_plan(LoadShape.parse("fixed:1000:6ms"), Arrivals.UNIFORM, PriorityMix())
        return await OpenLoopSender(RequestSource(made), target, BRISK).run()


def served(result: Result) -> int:
    return result.total().results[RequestResult.OK]


async def test_a_trusted_certificate_is_taken() -> None:
    assert served(await drive(always(OK), ca_file=str(CERTIFICATE))) == 6


def test_tls_works_on_the_loop_that_runs_are_made_on() -> None:
    assert served(run_on_loop(drive(once(OK), ca_file=str(CERTIFICATE)))) == 6


async def test_untrusted_certificate_fails_before_the_start() -> None:
    with pytest.raises(TrafficError, match=r"certificate of 127\.0\.0\.1:\d+ is not trusted: self.signed"):
        await drive(always(OK))


async def test_certificate_of_another_name_fails_before_the_start() -> None:
    with pytest.raises(TrafficError, match=r"not trusted: .*elsewhere\.test"):
        await drive(always(OK), ca_file=str(CERTIFICATE), server_name="elsewhere.test")


async def test_a_certificate_may_go_unverified() -> None:
    assert served(await drive(always(OK), verify=False)) == 6


async def test_invalid_server_name_fails_before_the_start() -> None:
    with pytest.raises(TrafficError, match=r"127\.0\.0\.1 as a\.\.b cannot be the name of a host"):
        await drive(always(OK), verify=False, server_name="a..b")


async def test_missing_ca_file_fails_before_the_start() -> None:
    with pytest.raises(TrafficError, match=r"authorities in nowhere\.pem cannot be read"):
        await drive(always(OK), ca_file="nowhere.pem")


async def test_https_to_an_http_server_fails_before_the_start() -> None:
    async def plain(reader: Reader, writer: Writer) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with ScriptedServer(plain) as server:
        target = TargetUrl(port=server.port, scheme="https")
        made = make_plan(LoadShape.parse("fixed:1000:6ms"), Arrivals.UNIFORM, PriorityMix())
        with pytest.raises(TrafficError, match=r"does not use TLS; is it http:// instead"):
            await OpenLoopSender(RequestSource(made), target, BRISK).run()


async def test_bodies_that_end_with_the_connection_end_with_tls_too() -> None:
    async def until_the_end(reader: Reader, writer: Writer) -> None:
        await request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
        await writer.drain()
        writer.close()
        await asyncio.sleep(0)

    assert served(await drive(until_the_end, verify=False)) == 6
