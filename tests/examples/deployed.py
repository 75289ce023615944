"""The files of examples/deploy, and their commands as processes of this machine in place of containers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.store.polling import HANG_S, until

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deploy"
KEY = "a-key-of-the-tests-with-enough-bytes"

_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def manifest(name: str) -> Any:
    """The content of a file in YAML."""
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def interpolated(text: str, given: Mapping[str, str]) -> str:
    """Text with the variables of compose replaced: ``${A:-default}``, ``${A:?message}``.

    Raises:
        KeyError: a variable without a default is not given.
    """

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        return given.get(name, rest) if kind == "-" else given[name]

    return _VARIABLE.sub(value, text)


def environment(compose: str, service: str, given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service of a compose file."""
    variables: dict[str, str] = manifest(compose)["services"][service]["environment"]
    return {name: interpolated(text, given) for name, text in variables.items()}


def unit(name: str) -> dict[str, list[tuple[str, str]]]:
    """The sections of a unit of systemd: keys may be there several times."""
    sections: dict[str, list[tuple[str, str]]] = {}
    lines: list[tuple[str, str]] = []
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            lines.append((key, value))
    return sections


def instructions(name: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(name, rest) for name, _, rest in pairs]


@contextlib.contextmanager
def process(
    command: list[str], environ: Mapping[str, str], output: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, with no settings of ours but those that are given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AUTOGLM_THROTTLE_")}
    with output.open("wb") as file:
        running = subprocess.Popen(
            command,
            cwd=ROOT,
            env=kept | {"PYTHONPATH": str(ROOT)} | dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield running
    except BaseException:
        sys.stderr.write(output.read_text(errors="replace"))
        raise
    finally:
        kill(running)


def kill(running: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started, as SIGKILL to a control group does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait(HANG_S)
    until(lambda: not _lives(running.pid), HANG_S, "the group has ended")


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
