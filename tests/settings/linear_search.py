"""Matches requests with route policies one by one: the reference for the trie."""

from __future__ import annotations

from collections.abc import Sequence

from autoglm_throttle.settings import RoutePolicy


def matches(route: RoutePolicy, method: str, segments: Sequence[str]) -> bool:
    """Whether a request of this method and these path segments matches the pattern."""
    methods = route.methods
    if methods is not None and method not in methods and not (method == "HEAD" and "GET" in methods):
        return False
    parts = [part for part in route.pattern.split("/") if part]
    if parts[-1:] == ["*"]:
        parts = parts[:-1]
        segments = segments[: len(parts)]
    return len(parts) == len(segments) and all(
        part == given or part[0] == "{" for part, given in zip(parts, segments, strict=True)
    )


def first_match(routes: Sequence[RoutePolicy], path: str, method: str) -> RoutePolicy | None:
    """Return the first policy that matches a path, as it is or without a last line feed."""
    readings = [[part for part in text.split("/") if part] for text in (path, path.removesuffix("\n"))]
    return next((route for route in routes if any(matches(route, method, each) for each in readings)), None)


class CountedText(str):
    """Text that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedText.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__
