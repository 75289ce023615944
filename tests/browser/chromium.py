"""A headless Chromium, driven over its DevTools protocol.

The browser has a profile of its own in a folder that the test throws away, a session of its own so that
nothing of it outlives the test, and a deadline for every answer.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Literal

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
APPLICATIONS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
MISSING = "no browser here: neither Chromium nor Chrome was found"
START_S, ANSWER_S, END_S = 30.0, 20.0, 5.0
SILENT = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
)


def program() -> str | None:
    """Where the browser is."""
    found = (shutil.which(name) for name in NAMES)
    return next(filter(None, found), None) or next(
        (path for path in APPLICATIONS if Path(path).exists()), None
    )


class Chromium:
    """A running browser with one page. Use it with ``with``."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        """Console messages, log entries and exceptions of the page."""
        self.asked: list[str] = []
        """URLs that the page wanted."""
        self._folder = folder
        self._number = 0
        self._session: str | None = None
        self._loaded = 0

    def __enter__(self) -> Chromium:
        path = program()
        if path is None:
            pytest.skip(MISSING)
        command = [path, *SILENT, f"--user-data-dir={self._folder / 'profile'}", "about:blank"]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")
        with ExitStack() as opened:
            log = opened.enter_context((self._folder / "browser.log").open("wb"))
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            opened.callback(self._end)
            socket = connect(self._address(), max_size=None, open_timeout=ANSWER_S)
            self._socket: ClientConnection = opened.enter_context(socket)
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            self._session = session
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        with suppress(ConnectionClosed, TimeoutError):
            self.call("Browser.close")
        self._opened.close()

    @property
    def group(self) -> int:
        """The group of all its processes."""
        return self._process.pid

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Ask the browser for something."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = self._hear()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])

    def open(self, path: Path, *, width: int = 1280, scheme: Literal["light", "dark"] = "light") -> None:
        """Open a file and wait until it is loaded; clears the recorded messages and requests before."""
        self.visit(path.as_uri(), width=width, scheme=scheme)

    def visit(self, url: str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light") -> None:
        """Open a URL as `open` does a file."""
        self.said.clear()
        self.asked.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        before = self._loaded
        failed = self.call("Page.navigate", url=url).get("errorText")
        assert not failed, failed
        while self._loaded == before:
            self._hear()

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def accessible(self, role: str) -> list[str]:
        """Accessible names of all elements with a role."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        chosen = (node for node in nodes if not node["ignored"] and node["role"]["value"] == role)
        return [node.get("name", {}).get("value", "") for node in chosen]

    def draw(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the whole page, or of its visible part."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _address(self) -> str:
        """Where it listens, as it writes it into its profile."""
        written = self._folder / "profile" / "DevToolsActivePort"
        give_up_s = time.monotonic() + START_S
        pause = threading.Event()
        while time.monotonic() < give_up_s and self._process.poll() is None:
            lines = written.read_text().splitlines() if written.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            pause.wait(0.02)
        said = (self._folder / "browser.log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"the browser did not start:\n{said}")

    def _hear(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=ANSWER_S))
        event, told = message.get("method"), message.get("params", {})
        if event == "Page.loadEventFired":
            self._loaded += 1
        elif event == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif event == "Runtime.consoleAPICalled":
            self.said.append(f"console: {told['args']}")
        elif event == "Runtime.exceptionThrown":
            self.said.append(f"exception: {told['exceptionDetails']}")
        elif event == "Log.entryAdded":
            self.said.append(f"log: {told['entry']['text']}")
        return message

    def _end(self) -> None:
        """Kill the whole group and see it gone; its grandchildren are collected by the system."""
        give_up_s = time.monotonic() + END_S
        pause = threading.Event()
        with suppress(ProcessLookupError, PermissionError):  # macOS forbids what Linux no longer finds
            while time.monotonic() < give_up_s:
                os.killpg(self.group, signal.SIGKILL)
                self._process.poll()
                pause.wait(0.02)
        self._process.wait(ANSWER_S)
