"""Collects the pages of the documentation site: names, links and the navigation.

Pages keep their links to files outside ``docs/``: such a file gets a place in the site, and links lead there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).parents[2]

TOP: Final = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    # Not security.md, the name of a page of docs/.
    "SECURITY.md": "reporting.md",
}
"""Files of the top folder, and their pages."""

SHOWN: Final = frozenset({".json", ".md", ".png", ".svg", ".txt"})
"""Files that a browser shows; others get the suffix .txt."""

_LINK: Final = re.compile(
    r"""
    ^(?P<fence>`{3,}).*?^(?P=fence)$ | `[^`\n]+`   # code, in which nothing is a link
    | (?<=\]\()(?P<target>[^)\s]+)(?=\))
    | (?<=\ssrc=")(?P<source>[^"]+) | (?<=\ssrcset=")(?P<sources>[^"]+)
    """,
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_ROW: Final = re.compile(r"^\| \[(.+?)\]\((\S+?)\) \|", re.MULTILINE)

Navigation = list[tuple[str, "str | Navigation"]]
"""Titles, each with its page or with further entries."""


def place(path: Path) -> PurePosixPath:
    """Return the place in the site of a file or folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if name in TOP:
        return PurePosixPath(TOP[name])
    if name.startswith("docs/"):
        return PurePosixPath(name.removeprefix("docs/"))
    # The generator leaves out hidden folders, such as that of the workflows.
    shown = PurePosixPath("source", re.sub(r"(^|/)\.", r"\1", name))
    if path.name == "README.md":  # the page of its folder; an index would stand for its whole section
        return shown.parent.with_suffix(".md")
    if path.is_dir():
        return shown.with_suffix(".md")
    return shown if path.suffix in SHOWN else shown.with_name(f"{shown.name}.txt")


@dataclass
class Pages:
    """The pages of the site, and the files that they lead to."""

    contents: dict[PurePosixPath, bytes] = field(default_factory=dict)
    """Place in the site -> content."""

    def add(self, path: Path) -> PurePosixPath:
        """Add a file or folder, and all that its links lead to. Returns its place.

        Raises:
            FileNotFoundError: a link leads to nothing.
        """
        where = place(path)
        if where in self.contents:
            return where
        self.contents[where] = b""  # known before its links are followed, which may lead back
        if path.is_dir() and not (path / "README.md").exists():
            self.contents[where] = self._linked(_listing(path), path, where).encode()
        elif where.suffix == ".md":
            source = path / "README.md" if path.is_dir() else path
            self.contents[where] = self._linked(source.read_text("utf-8"), source.parent, where).encode()
        else:
            self.contents[where] = path.read_bytes()
        return where

    def _linked(self, text: str, folder: Path, where: PurePosixPath) -> str:
        """Return a page whose links lead to places of the site, and add these."""

        def replace(found: re.Match[str]) -> str:
            target = found["target"] or found["source"] or found["sources"]
            return found[0] if target is None else self._target(target, folder, where)

        return _LINK.sub(replace, text)

    def _target(self, target: str, folder: Path, where: PurePosixPath) -> str:
        path, mark, anchor = target.partition("#")
        if not path or ":" in path:  # in the same page, or on another host
            return target
        file = Path(os.path.normpath(folder / path))
        if not file.exists():
            raise FileNotFoundError(f"{where}: the link {target} leads to nothing")
        to = self.add(file)
        return PurePosixPath(os.path.relpath(to, where.parent)).as_posix() + mark + anchor


def _listing(folder: Path) -> str:
    entries = sorted(each for each in folder.iterdir() if each.name[0] not in "._")
    rows = "".join(f"- [{each.name}]({each.name})\n" for each in entries)
    return f"# {folder.relative_to(ROOT).as_posix()}\n\n{rows}"


def sections(index: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the sections of the index, each with the titles and links of its table."""
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        yield part.partition("\n")[0], _ROW.findall(part)


def decisions() -> Navigation:
    """Return the entries of the decisions."""
    rows = re.findall(r"^\| \[\d+\]\((\S+)\) \| (.+) \|$", _read("adr/README.md"), re.MULTILINE)
    return [(title.replace("`", ""), f"adr/{name}") for name, title in rows]


def navigation(api: Navigation) -> Navigation:
    """Return the navigation, which the index of the pages decides, with the entries of the API reference."""
    found: Navigation = [("Which page?", "index.md"), ("Overview", place(ROOT / "README.md").as_posix())]
    for title, rows in sections(_read("index.md")):
        entries: Navigation = []
        for name, target in rows:
            page = place(Path(os.path.normpath(ROOT / "docs" / target))).as_posix()
            decided = [("All decisions", page), *decisions()] if page == "adr/README.md" else page
            entries.append((name, decided))
        found.append((title, entries + [("API reference", api)] * (title == "Reference")))
    return found


def _read(name: str) -> str:
    return (ROOT / "docs" / name).read_text("utf-8")
