"""Spellings of a path that routers, servers and limiters may read differently."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Spell = Callable[[str], list[str]]


def slashes(path: str) -> list[int]:
    """Return the positions of the slashes behind the first."""
    return [at for at, character in enumerate(path) if character == "/" and at]


def at_slashes(path: str, text: str) -> list[str]:
    """Replace each slash behind the first by a text, one at a time, then all."""
    one = [path[:at] + text + path[at + 1 :] for at in slashes(path)]
    return [*one, path[0] + path[1:].replace("/", text)]


def behind(path: str, *texts: str) -> list[str]:
    """Put each text behind the path, and behind its first segment."""
    first = path.find("/", 1)
    inner = [] if first < 0 else [path[:first] + text + path[first:] for text in texts]
    return [path + text for text in texts] + inner


SPELLINGS: Mapping[str, Spell] = {
    "as it is": lambda path: [path],
    "%2f and %5c for a slash": lambda path: [
        spelled for text in ("%2f", "%2F", "%5c", "\\", "%252f") for spelled in at_slashes(path, text)
    ],
    "repeated slashes": lambda path: ["/" + path, *at_slashes(path, "//"), *at_slashes(path, "/%2f")],
    "dot segments": lambda path: [
        *at_slashes(path, "/./"),
        *at_slashes(path, "/%2e/"),
        *at_slashes(path, "/x/../"),
        *at_slashes(path, "/x/%2e%2e/"),
        *at_slashes(path, "/x/.%2e/"),
        "/." + path,
        "/.." + path,
        "/%2e%2e" + path,
    ],
    "from an exempt path": lambda path: [
        prefix + path
        for exempt in ("/internal", "/free", "/state")
        for prefix in (
            *(f"{exempt}/..", f"{exempt}/%2e%2e", f"{exempt}/.%2E", f"{exempt}/..%2f..", f"{exempt}%2f.."),
            *(f"{exempt}/a/../..", f"{exempt}/", f"{exempt}/.", f"{exempt}/..;", f"{exempt}/..;x=1"),
            *(f"{exempt}%00", f"{exempt}%0a", f"{exempt};", f"{exempt}?", f"{exempt}%3f", f"{exempt}/..%0a"),
        )
    ],
    "parameters": lambda path: behind(path, ";", ";a=b", "%3b", "%3Ba=b", ";/", ";%0a", "&a", "%26"),
    "control bytes": lambda path: behind(
        path, "%00", "%0a", "%0d", "%0d%0a", "%0a%0a", "%09", "%0b", "%1f", "%7f", "%20", "+", "%0a/", "/%0a"
    ),
    "separators of Unicode": lambda path: behind(path, "%c2%85", "%e2%80%a8", "%e2%80%8b", "%c2%a0"),
    "broken UTF-8": lambda path: behind(path, "%ff", "%c0%af", "%c0%ae", "%ed%a0%80", "%fe%ff", "%c3"),
    "broken escapes": lambda path: behind(path, "%", "%2", "%zz", "%u002f", "%-1", "%%30a"),
    "double encoding": lambda path: behind(path, "%250a", "%252e", "%2500", "%25", "%253f"),
    "escaped letters": lambda path: [
        "/" + "".join(f"%{ord(c):02x}" if c.isalpha() else c for c in path[1:]),
        path[:2] + "%" + f"{ord(path[2]):02X}" + path[3:],
        "%2f" + path[1:],
    ],
    "case": lambda path: [path.upper(), path.title(), path[:-1] + path[-1].upper()],
    "trailing dots and slashes": lambda path: behind(path, "/", "//", ".", "/.", "..", "/..", "./", "%2e"),
    "absolute-form targets": lambda path: [
        *(f"http://127.0.0.1{path}", f"http://other.example:8080{path}", f"HTTP://127.0.0.1{path}"),
        *(f"//127.0.0.1{path}", f"http:{path}", f"http://user@127.0.0.1{path}", f"http://internal{path}"),
        *(f"file://{path}", f"http:///internal/..{path}", f"http://127.0.0.1/internal/..{path}"),
    ],
    "queries and fragments": lambda path: [
        *(path + "?", path + "?/internal/x", path + "?x=/state", path + "#", path + "#/state"),
        *(path + "%3f", path + "%23", path + "??", path + "?%0a", "/state?" + path, "/internal?/.." + path),
    ],
    "other first characters": lambda path: [
        path[1:],
        "*",
        "?" + path,
        "." + path,
        "\\" + path[1:],
        "~" + path,
    ],
    "overlong": lambda path: [
        path + "/" * 3000,
        path + "?" + "a" * 7000,
        path + "%2f" * 1000,
        "/." * 1500 + path,
        "/x/.." * 900 + path,
        "/" * 3000 + path,
        path + "%00" * 1000,
        path + "a" * 70_000,
    ],
}
"""Kind of spelling -> targets made from a path."""
