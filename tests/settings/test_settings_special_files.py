"""A file that is no regular file, or nested without end, is a problem and no blocked start."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoglm_throttle.settings import PREFIX, ConfigError, Problem, Settings

CONFIG_FILE = PREFIX + "CONFIG_FILE"

LEVELS = 2000

SAFETY_NET_S = 10.0
"""Longest wait for a read that blocks: it ends the test, but decides nothing in code that is right."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test: the path of a socket must be short."""
    monkeypatch.chdir(tmp_path)


def problems_of(make: Callable[[], object], path: str) -> list[Problem]:
    """Read settings in a thread, and release the thread if the file blocks it."""
    raised: list[BaseException] = []

    def read() -> None:
        try:
            make()
        except BaseException as error:  # noqa: BLE001 - it is checked below, in the thread of the test
            raised.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(SAFETY_NET_S)
    if thread.is_alive():
        # A FIFO with a writer that closes ends the read.
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        thread.join(SAFETY_NET_S)
        pytest.fail(f"{path} blocks the reader")
    assert [type(error) for error in raised] == [ConfigError]
    (error,) = raised
    return error.problems if isinstance(error, ConfigError) else []


def directory() -> Iterator[str]:
    """Create a directory."""
    Path("folder").mkdir()
    yield "folder"


def fifo() -> Iterator[str]:
    """Create a named pipe that nothing writes to."""
    os.mkfifo("pipe")
    yield "pipe"


def unix_socket() -> Iterator[str]:
    """Create a socket that listens."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        server.listen()
        yield "socket"


def linked_fifo() -> Iterator[str]:
    """Create a link to a named pipe."""
    os.mkfifo("pipe")
    Path("link.toml").symlink_to("pipe")
    yield "link.toml"


SPECIAL: dict[str, Callable[[], Iterator[str]]] = {
    "directory": directory,
    "fifo": fifo,
    "link to fifo": linked_fifo,
    "socket": unix_socket,
    "zeros": lambda: iter(["/dev/zero"]),
    "null": lambda: iter(["/dev/null"]),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_file_as_config_file_is_a_problem(kind: str) -> None:
    made = SPECIAL[kind]()
    path = next(made)
    problems = problems_of(lambda: Settings.from_env({CONFIG_FILE: path, PREFIX + "WORKERS": "0"}), path)
    assert [problem.variable for problem in problems] == [PREFIX + "WORKERS", CONFIG_FILE]
    assert path in problems[1].message
    problems = problems_of(lambda: Settings.from_env({}, config_file=path), path)
    assert [problem.variable for problem in problems] == ["config_file"]
    next(made, None)


@pytest.mark.parametrize("kind", SPECIAL)
def test_special_file_as_env_file_is_a_problem(kind: str) -> None:
    made = SPECIAL[kind]()
    path = next(made)
    problems = problems_of(lambda: Settings.from_env({PREFIX + "WORKERS": "0"}, path), path)
    assert [problem.variable for problem in problems] == [PREFIX + "WORKERS", "env_file"]
    assert problems[1].message.startswith("cannot be read: ")
    assert problems[1].hint == f"'{path}'"
    next(made, None)


def test_link_to_regular_file_is_read() -> None:
    Path("real.toml").write_text("workers = 3\n")
    Path("link.toml").symlink_to("real.toml")
    assert Settings.from_env({CONFIG_FILE: "link.toml"}).text_of("workers") == "3"
    Path("real.env").write_text(f"{PREFIX}WORKERS=4\n")
    Path("link.env").symlink_to("real.env")
    assert Settings.from_env({}, "link.env").text_of("workers") == "4"


NESTED = {
    "arrays": "{key} = " + "[" * LEVELS + "]" * LEVELS,
    "open arrays": "{key} = " + "[" * LEVELS,
    "inline tables": "{key} = " + "{a = " * LEVELS + "1" + "}" * LEVELS,
    "arrays of tables": "{key} = " + "[{a = " * LEVELS + "1" + "}]" * LEVELS,
    "dotted key": "{key}" + ".a" * LEVELS + " = 1",
    "header": "[{key}" + ".a" * LEVELS + "]\nb = 1",
    "header of array": "[[{key}" + ".a" * LEVELS + "]]\nb = 1",
    "value in a route": "[[routes]]\npattern = '/a'\n{key} = " + "[" * LEVELS + "]" * LEVELS,
}
"""TOML with 2000 levels; the second and the last are too many for most parsers."""

KEYS = ("future", "workers", "tiers", "gpu", "key_secret", "routes", "plans", "guards", "resource_policy")


@pytest.mark.parametrize("form", NESTED)
@pytest.mark.parametrize("key", KEYS)
def test_file_nested_without_end_is_a_problem(form: str, key: str) -> None:
    Path("throttle.toml").write_text(NESTED[form].replace("{key}", key) + "\n")
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({CONFIG_FILE: "throttle.toml"})
    places = [problem.variable for problem in caught.value.problems]
    assert all(place == CONFIG_FILE or place.startswith("throttle.toml:") for place in places)
    assert str(caught.value)
