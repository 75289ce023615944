"""Options of all commands: none can be abbreviated, and JSON output has one spelling."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from autoglm_throttle.cli.main import COMMANDS, _parser

COMPARE = ("load", "compare")
RECORD = ("info", "check", "convert")
COMMAND_LINES = [
    *((name,) for name in COMMANDS if name not in ("record", "demo")),
    COMPARE,
    *(("record", name) for name in RECORD),
]
NO_RESULT = (("record", "convert"), ("agent",), ("gateway",), ("ports",))
PRINTS_JSON = [words for words in COMMAND_LINES if words not in NO_RESULT]


def actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """All options and positionals; argparse has no public name for them."""
    return list(parser._actions)


def parser_of(words: tuple[str, ...]) -> argparse.ArgumentParser:
    """The parser that reads the options of a command."""
    parser = _parser(words)
    for name in words if words != COMPARE else words[:1]:
        (commands,) = (one for one in actions(parser) if one.nargs == argparse.PARSER)
        parser = dict(commands.choices or {})[name]
    return parser


def long_options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.Action]]:
    for action in actions(parser):
        for name in action.option_strings:
            if name.startswith("--"):
                yield name, action


def abbreviations(parser: argparse.ArgumentParser) -> set[str]:
    """The shortest and the longest proper prefix of each long option, unless it is an option itself."""
    names = {name for name, _ in long_options(parser)}
    return {prefix for name in names for prefix in (name[:4], name[:-1])} - names


@pytest.mark.parametrize("words", COMMAND_LINES, ids=" ".join)
def test_abbreviated_option_is_wrong_usage(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = parser_of(words)
    positionals = ["1"] * sum(not action.option_strings for action in actions(parser))
    assert "--hel" in abbreviations(parser)
    for option in abbreviations(parser):
        with pytest.raises(SystemExit) as caught:
            _parser(words).parse_args([*words, *positionals, f"{option}=1"])
        assert caught.value.code == 2
        assert f"unrecognized arguments: {option}=1" in capsys.readouterr().err


@pytest.mark.parametrize("words", PRINTS_JSON, ids=" ".join)
def test_json_output_has_one_spelling(words: tuple[str, ...]) -> None:
    options = dict(long_options(parser_of(words)))
    assert options["--format"].metavar == "text|json"
    assert options["--format"].help == "output format (default: text)"
    switches = {name for name, action in options.items() if action.nargs == 0}
    assert not switches & {"--json", "--text", "--jsonl"}
