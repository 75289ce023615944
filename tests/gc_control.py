"""A garbage collector whose moment a test chooses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any


class Collector:
    """Runs once, at the n-th call or return in an act; the real one runs at some of these moments.

    Args:
        collect: what it does.
        moment: n, from 1.
        watched: files whose calls and returns are counted.
    """

    def __init__(self, collect: Callable[[], Any], moment: int, watched: Collection[str]) -> None:
        self.collect = collect
        self.moment = moment
        self.watched = watched
        self.seen = 0

    def profile(self, frame: FrameType, event: str, arg: Any) -> None:
        if event != "c_call" and frame.f_code.co_filename in self.watched:
            self.seen += 1
            if self.seen == self.moment:
                self.collect()

    def watch(self, act: Callable[[], Any]) -> Any:
        sys.setprofile(self.profile)
        try:
            return act()
        finally:
            sys.setprofile(None)
