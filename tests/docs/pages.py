"""The pages that are written by hand, and the blocks of code in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

LOAD_TEST_COMMANDS = (["load"], ["replay"], ["record"])
"""Second words of the commands that need a service or a recording."""

SERVING_COMMANDS = (["gateway"],)
"""Second words of the commands that serve until a signal."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block of code."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One line after a ``$`` in a block of the language console."""

    block: Block
    environment: dict[str, str]
    words: list[str]
    """Of the last part of a pipe."""
    given: str
    """Standard input that ``printf`` pipes into it."""
    printed: str

    def __str__(self) -> str:
        return f"{self.block} {' '.join(self.words)}"


def blocks(language: str) -> list[Block]:
    """Every block of a language, in all pages."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(page.name, line, language, match[2]))
    return found


def commands() -> Iterator[Command]:
    """Every command of the console blocks; exports of a block apply to the commands after it."""
    for block in blocks("console"):
        exported: dict[str, str] = {}
        for part in block.text.split("$ ")[1:]:
            typed, _, printed = part.partition("\n")
            given = ""
            if "|" in typed:
                given, typed = typed.split("|")
            environment, words = _split(shlex.split(typed))
            if words[:1] == ["export"]:
                exported |= _split(words[1:])[0]
            else:
                value = shlex.split(given)[-1] if given else ""
                yield Command(block, exported | environment, words, value, printed)


def _split(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The assignments in front of a command, and the command."""
    environment: dict[str, str] = {}
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    return environment, words
