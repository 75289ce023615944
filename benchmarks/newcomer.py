"""A newcomer's path, each step timed: install, first answer, first rejection, shared limits, dashboard.

Run: ``python -m benchmarks.newcomer``, about a minute. Each step does as the pages say, in an empty home: a
new virtual environment with the wheel of this tree and all extras, and no variable but those of the pages.
Programs and commands are read from README.md and docs/. The first step is mostly the download of packages.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

from benchmarks import harness
from tests.docs.pages import Command, blocks, commands
from tests.project.wheel import build
from tests.store.server import RedisServer, free_port

START_S = 60.0
"""Seconds for a server to answer."""

KEPT = ("LANG", "PIP_", "SSL_", "TMPDIR")
"""Beginnings of variables that a home has anyway, such as those that lead pip to its index."""

LIMIT = 5
"""Requests a minute of the README's first command."""


class Newcomer:
    """An empty home, and the times of the steps taken in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.commands = home / "venv" / "bin"
        self.steps: dict[str, float] = {}
        kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
        self.environ = {**kept, "HOME": str(home), "PATH": f"{self.commands}:/usr/local/bin:/usr/bin:/bin"}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step."""
        started_s = time.monotonic()
        yield
        self.steps[name] = round(time.monotonic() - started_s, 1)
        print(f"{name:40}{self.steps[name]:6.1f} s", flush=True)

    def run(self, *words: str, **variables: str) -> str:
        """Run a command of the environment to its end.

        Raises:
            CalledProcessError: it failed.
        """
        done = subprocess.run(
            [str(self.commands / words[0]), *words[1:]],
            cwd=self.home,
            env={**self.environ, **variables},
            text=True,
            stdout=subprocess.PIPE,
            check=True,
        )
        return done.stdout

    @contextmanager
    def serve(self, command: Command, **variables: str) -> Iterator[str]:
        """Run a command that serves, on a free port, until the end of the block; gives its origin."""
        port = free_port()
        words = [str(self.commands / command.words[0]), *command.words[1:], "--port", str(port)]
        environ = {**self.environ, **command.environment, **variables}
        with (self.home / "server.log").open("ab") as log:
            server = subprocess.Popen(words, cwd=self.home, env=environ, stdout=log, stderr=log)
            try:
                origin = f"http://127.0.0.1:{port}"
                self._await(server, origin)
                yield origin
            finally:
                server.terminate()
                server.wait(START_S)

    def _await(self, server: subprocess.Popen[bytes], origin: str) -> None:
        until_s = time.monotonic() + START_S
        while server.poll() is None and time.monotonic() < until_s:
            try:
                status(f"{origin}/healthz")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"the server does not answer:\n{(self.home / 'server.log').read_text()[-2000:]}")


def status(url: str) -> int:
    """Return the status of a GET."""
    return fetch(url)[0]


def fetch(url: str) -> tuple[int, Message, str]:
    """Return status, fields and body of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=START_S) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def program(page: str, text: str) -> str:
    """Return the first program of a page that contains a text."""
    return next(block.text for block in blocks("python") if block.page == page and text in block.text)


def command(page: str, *words: str) -> Command:
    """Return the first command of a page that begins with some words."""
    return next(
        one for one in commands() if one.block.page == page and tuple(one.words[: len(words)]) == words
    )


def install(newcomer: Newcomer, wheel: Path) -> None:
    """Install the wheel as the README says, in place of the clone: no version is pinned."""
    subprocess.run([sys.executable, "-m", "venv", str(newcomer.commands.parent)], check=True)
    newcomer.run("pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[all]")


def first_answers(newcomer: Newcomer) -> None:
    """Serve the README's first program, up to the first rejection."""
    (newcomer.home / "app.py").write_text(program("README.md", "# app.py"))
    with ExitStack() as stack:
        with newcomer.step("README: first answer"):
            origin = stack.enter_context(newcomer.serve(command("README.md", "uvicorn", "app:app")))
            answers = [fetch(f"{origin}/ask")]
        with newcomer.step("README: first rejection"):
            answers += [fetch(f"{origin}/ask") for _ in range(LIMIT)]
    assert [answer[0] for answer in answers] == [200] * LIMIT + [429], answers
    assert int(answers[-1][1]["Retry-After"]) >= 1


def shared_limits(newcomer: Newcomer) -> None:
    """Serve the same program by two processes with one limit."""
    served = command("README.md", "uvicorn", "app:app")
    checked = command("shared-limits.md", "autoglm-throttle", "check")
    with newcomer.step("shared limits: Redis, two processes"), RedisServer() as redis, ExitStack() as stack:
        shared = {**checked.environment, **served.environment, "AUTOGLM_THROTTLE_REDIS_URL": redis.url}
        newcomer.run(*checked.words, **shared)
        origins = [stack.enter_context(newcomer.serve(served, **shared)) for _ in range(2)]
        statuses = [status(f"{origins[number % 2]}/ask") for number in range(LIMIT + 1)]
    assert statuses == [200] * LIMIT + [429], statuses


def dashboard(newcomer: Newcomer) -> None:
    """Write the dashboard's files, and serve the metrics and the live page that belong to them."""
    served = command("README.md", "uvicorn", "app:app")
    written = command("operating.md", "autoglm-throttle", "dashboards")
    with newcomer.step("operating: files for Prometheus, Grafana"):
        newcomer.run(*written.words)
    assert (newcomer.home / written.words[2] / "grafana.json").exists()
    pages = {
        "metrics": ("metrics.md", "metrics_app", "autoglm_throttle_requests_total"),
        "live page": ("live-page.md", "status_app", "<title>"),
    }
    for name, (page, text, expected) in pages.items():
        (newcomer.home / "app.py").write_text(program(page, text))
        path = re.search(r'mount\("(/\w+)"', program(page, text))
        assert path, page
        with newcomer.step(name), newcomer.serve(served) as origin:
            code, _, body = fetch(f"{origin}{path[1]}/")
        assert code == 200, body
        assert expected in body, body[:300]


def walk(home: Path) -> dict[str, float]:
    """Take all steps in an empty home; returns their seconds."""
    newcomer = Newcomer(home / "home")
    newcomer.home.mkdir()
    wheel = build(home / "dist")
    with newcomer.step("install"):
        install(newcomer, wheel)
    first_answers(newcomer)
    shared_limits(newcomer)
    dashboard(newcomer)
    return newcomer.steps


def part(kept: Mapping[str, Any]) -> str:
    """Render the times of the steps."""
    rows = "".join(f"| {name} | {seconds:.1f} s |\n" for name, seconds in kept["steps"].items())
    return (
        "| step | time |\n|---|---|\n"
        f"{rows}| all | {sum(kept['steps'].values()):.1f} s |\n\n"
        f"`benchmarks/newcomer.py`: {harness.line(kept['machine'])}.\n"
    )


def main() -> None:
    """Take the steps, print and keep their times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = walk(Path(folder))
    print(f"{'all':40}{sum(steps.values()):6.1f} s")
    if options.write:
        harness.keep("newcomer", {"machine": harness.machine(), "steps": steps})


if __name__ == "__main__":
    main()
