"""A server that dies or will not die leaves neither processes nor a taken port behind."""

from __future__ import annotations

import pytest

from tests.servers import server as servers
from tests.servers.server import Server

pytestmark = pytest.mark.server

STUBBORN = """
import http.server, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
os.fork()
server.serve_forever()
"""


def test_server_dying_at_start_shows_its_output() -> None:
    with pytest.raises(RuntimeError, match="no such app"):
        Server("-c", "raise SystemExit('no such app')", "{port}")


def test_server_that_does_not_stop_is_killed_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "STOP_S", 1.0)
    server = Server("-c", STUBBORN, "{port}")
    server.stop()
    with pytest.raises(ConnectionRefusedError):
        server.connection().connect()
