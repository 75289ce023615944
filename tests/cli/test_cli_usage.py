"""The command line: usage, help, completion, the demonstration, errors and terminals."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.cli import main
from autoglm_throttle.types import ThrottleError
from tests.cli.configured import GOLDEN, Run

command_table = import_module("autoglm_throttle.cli.main")


pytestmark = pytest.mark.usefixtures("configured")


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["show", "--nonsense"], ["check", "--format", "xml"]])
def test_wrong_usage_ends_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: autoglm-throttle" in capsys.readouterr().err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["check", "--help"], ["show", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 0
    out = capsys.readouterr().out
    for name in ("check", "show", "tiers", "identity", "doctor", "gpus", "demo", "load", "replay", "record"):
        assert name in out
    assert "--strict" in out
    assert "--changed" in out
    assert "autoglm-throttle 0." in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_script_names_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", shell])
    script = capsys.readouterr().out
    for name in ("doctor", "--strict", "--find-peak", "--max-gap", "--mask-path"):
        assert name.removeprefix("--") in script


def test_completion_without_its_package_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit, match="2"):
        main(["--print-completion", "bash"])
    assert "the package shtab is missing" in capsys.readouterr().err


def test_load_test_modules_are_imported_lazily() -> None:
    code = (
        "import sys; from autoglm_throttle.cli import main\ntry: main(['-h'])\nfinally: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "usage: autoglm-throttle" in done.stdout
    assert "autoglm_throttle.traffic" not in done.stdout
    assert "autoglm_throttle.cli.load" not in done.stdout


def test_demo_is_started_in_a_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[Any] = []

    def replaced(program: str, command: list[str], environment: dict[str, str]) -> None:
        started.append((program, command[1:], environment["PYTHONPATH"].split(os.pathsep)[0]))
        raise SystemExit(0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execve", replaced)
    with pytest.raises(SystemExit):
        main(["demo", "--seconds", "3"])
    words = ["-m", "examples.demo", "--seconds", "3"]
    assert started == [(sys.executable, words, str(Path(__file__).parents[2]))]


def test_demo_outside_a_clone_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_table, "__file__", str(tmp_path / "autoglm_throttle" / "cli" / "main.py"))
    assert main(["demo"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "clone the repository and run make demo" in told.err


def test_throttle_error_exits_with_1_without_traceback(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def failing(args: Namespace) -> int:
        raise ThrottleError("no port is free")

    monkeypatch.setattr("autoglm_throttle.cli.tiers.run", failing)
    assert run("tiers") == (1, "tiers: no port is free\n")


class Terminal(io.StringIO):
    encoding = "ascii"

    def isatty(self) -> bool:
        return True


def test_colours_only_on_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def printed() -> str:
        terminal = Terminal()
        monkeypatch.setattr(sys, "stdout", terminal)
        main(["check"])
        return terminal.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert printed().startswith("\x1b[33mwarning\x1b[0m: ")
    monkeypatch.setenv("NO_COLOR", "1")
    assert printed().startswith("warning: ")


def test_text_that_the_terminal_lacks_is_escaped(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    terminal = Terminal()
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", "grün")
    monkeypatch.setattr(sys, "stdout", terminal)
    main(["check"])
    assert "'gr\\xfcn'" in terminal.getvalue()


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autoglm_throttle", "tiers"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (GOLDEN / "tiers_defaults.txt").read_text("utf-8")
