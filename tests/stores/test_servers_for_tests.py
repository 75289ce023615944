"""Each server for tests really does what its fixture says."""

from __future__ import annotations

import pytest

from tests.stores import resp
from tests.stores.server import RedisServer

pytestmark = pytest.mark.server


def test_each_program_of_the_machine_answers_as_what_it_says_it_is(redis_server: RedisServer) -> None:
    info = redis_server.info("server")
    version = info.get("valkey_version", info["redis_version"])
    assert redis_server.binary.name.endswith(f"-{version}")


def test_a_paused_server_does_not_answer_until_it_is_resumed(own_server: RedisServer) -> None:
    own_server.pause()
    with pytest.raises(TimeoutError):
        resp.ask(own_server.port, "PING", timeout_s=0.1)
    own_server.resume()
    assert own_server.command("PING") == "PONG"


def test_a_restarted_server_is_empty_and_where_it_was(own_server: RedisServer) -> None:
    port, pid = own_server.port, own_server.pid
    own_server.command("SET", "k", "v")
    own_server.restart()
    assert own_server.command("GET", "k") is None
    assert own_server.port == port
    assert own_server.pid != pid


def test_the_port_of_a_killed_server_refuses(own_server: RedisServer) -> None:
    own_server.kill()
    with pytest.raises(ConnectionRefusedError):
        own_server.command("PING")
