"""No limit."""

from __future__ import annotations

from benchmarks.loop.doors.door import PlainDoor, Site
from benchmarks.loop.request import Request


class OpenDoor(PlainDoor):
    """Everybody comes in."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def arrive(self, request: Request) -> None:
        """Let it in."""
        self._site.enter(request)

    def ended(self, request: Request, *, ok: bool) -> None:
        """Nothing was held."""
