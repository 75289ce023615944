"""A real nginx on loopback, with the configuration that ``autoglm-throttle nginx`` prints."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autoglm_throttle.cli.nginx import find_nginx
from tests.servers.server import ANSWER_S, ROOT, Reply, ask
from tests.store.polling import HANG_S, until
from tests.store.server import free_port

needs_nginx = pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")

MAIN = """\
daemon off;
worker_processes 1;
pid pid;
error_log error.log info;
events {{ }}
http {{
client_body_temp_path body;
proxy_temp_path proxy;
fastcgi_temp_path fastcgi;
uwsgi_temp_path uwsgi;
scgi_temp_path scgi;
set_real_ip_from 127.0.0.1;
real_ip_header X-Test-Address;
log_format seen "$msec $request_time $remote_addr $status";
access_log access.log seen;
server {{ listen unix:{folder}/app; access_log off; location / {{ return 200 "app"; }} }}
{text}
}}
"""


@dataclass(frozen=True)
class Seen:
    """One request as nginx has logged it."""

    at_s: float
    address: str
    status: int


class Nginx:
    """One nginx in front of the addresses of a service; without any, in front of an app of its own.

    Its folder can be read by all users: its workers run as another user if the tests run as root. From
    127.0.0.1 the field ``X-Test-Address`` is the address of the client.
    """

    def __init__(self, *upstreams: str, flags: Path | None = None, **environ: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nginx-"))
        self.folder.chmod(0o755)
        self.flags = flags or self.folder / "flags"
        self.port = free_port()
        text = printed(self.flags, self.port, upstreams or (f"unix:{self.folder}/app",), environ)
        (self.folder / "nginx.conf").write_text(MAIN.format(folder=self.folder, text=text))
        command = [str(find_nginx()), "-p", f"{self.folder}/", "-c", f"{self.folder}/nginx.conf"]
        with (self.folder / "output").open("wb") as output:
            self.process = subprocess.Popen(command, stderr=output, start_new_session=True)
        try:
            until(lambda: self.get("/health"), HANG_S, f"nginx answers: {self.errors()}")
        except BaseException:
            self.stop()
            raise

    def connection(self, source: str = "127.0.0.1") -> http.client.HTTPConnection:
        """A new connection from an address of loopback."""
        return http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=ANSWER_S, source_address=(source, 0)
        )

    def get(self, path: str = "/", headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own."""
        with contextlib.closing(self.connection()) as connection:
            return ask(connection, path, headers)

    def errors(self) -> str:
        """The messages of nginx so far."""
        files = (self.folder / name for name in ("output", "error.log"))
        return "".join(file.read_text() for file in files if file.exists())

    def seen(self, address: str) -> list[Seen]:
        """The requests of an address, by the time of their arrival."""
        rows = (line.split() for line in (self.folder / "access.log").read_text().splitlines())
        found = [Seen(float(end) - float(took), who, int(status)) for end, took, who, status in rows]
        return sorted((one for one in found if one.address == address), key=lambda one: one.at_s)

    def stop(self) -> None:
        """End nginx and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(HANG_S)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


def printed(flags: Path, port: int, upstreams: tuple[str, ...], environ: dict[str, str]) -> str:
    """The configuration that the command prints for an environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOGLM_THROTTLE_")}
    given = {f"AUTOGLM_THROTTLE_{name}": value for name, value in environ.items()}
    words = [word for address in upstreams for word in ("--upstream", address)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "autoglm_throttle", "nginx", "--flags-dir", str(flags)),
            *("--listen", f"127.0.0.1:{port}", *words),
        ],
        env=kept | given | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def running(*upstreams: str, flags: Path | None = None, **environ: str) -> Iterator[Nginx]:
    """Run an nginx for a block; ``flags`` is the folder of its flags, instead of one of its own."""
    nginx = Nginx(*upstreams, flags=flags, **environ)
    try:
        yield nginx
    finally:
        nginx.stop()
