"""``page`` prints the live page of a service."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from autoglm_throttle.cli import main
from autoglm_throttle.observe.page.builder import PageBuilder
from autoglm_throttle.observe.timer import history_timer
from autoglm_throttle.testing import throttle_for_tests
from tests.observe.page_states import send

TOKEN = "correct horse battery staple"
VARIABLE = "AUTOGLM_THROTTLE_STATUS_TOKEN"


class Service(HTTPServer):
    """Answers with a document to those that send the token."""

    document = b""
    asked: list[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/throttle"


class Answer(BaseHTTPRequestHandler):
    server: Service

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        allowed = self.headers["authorization"] == f"Bearer {TOKEN}"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(self.server.document if allowed else b"")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv(VARIABLE, TOKEN)
    with Service(("127.0.0.1", 0), Answer) as server:
        server.asked = []
        server.document = document()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def document() -> bytes:
    throttle = throttle_for_tests(user_limit="1/day")
    send(throttle, 3, "0123456789abcdef")
    builder = PageBuilder(throttle)
    timer = history_timer(throttle)
    timer.add_consumer(builder)
    timer.step()
    assert builder.state is not None
    return builder.state.document


def test_sections_and_tables_are_printed(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", service.url]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert service.asked == ["/throttle/data.json"]
    assert shown[0].startswith("Not limiting: ")
    assert shown[1].startswith("As of ")
    assert {"Now", "Classes", "Users limited most"} <= set(shown)
    assert "Configuration" not in shown
    assert "  Of the newest 2 rejections by a user limit" in shown
    place = shown.index("    hash of the user  rejections")
    assert shown[place + 1] == "    0123456789abcdef  2"


def test_configuration_is_printed_on_request(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", service.url + "/", "--configuration"]) == 0
    shown = capsys.readouterr().out
    assert "\nConfiguration\n  Settings\n    setting " in shown


def test_json_is_the_document(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", service.url, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(service.document)


def test_a_missing_token_is_named(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(VARIABLE)
    assert main(["page", service.url]) == 1
    assert f"answers 401 Unauthorized: set {VARIABLE}" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"{}"])
def test_another_page_is_an_error(
    service: Service, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    service.document = content
    assert main(["page", service.url]) == 1
    assert capsys.readouterr().err.startswith(f"page: {service.url}/ ")


def test_a_service_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", "http://127.0.0.1:9/"]) == 1
    assert "http://127.0.0.1:9/ cannot be read: " in capsys.readouterr().err


@pytest.mark.parametrize("url", ["x", "file:///etc/passwd", "http://"])
def test_other_addresses_are_wrong_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["page", url]) == 2
    assert "must be a URL with http:// or https://" in capsys.readouterr().err
