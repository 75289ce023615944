"""Limits and windows of the shapes that tests ask for."""

from __future__ import annotations

from autoglm_throttle.limiting.sliding_window import SlidingWindow
from autoglm_throttle.types import UserLimit

Limits = tuple[UserLimit, ...]


def limit(units: int, window_s: int) -> UserLimit:
    return UserLimit(f"user-{window_s}s", units, window_s)


def per(units: int, window_s: int = 60) -> Limits:
    return (limit(units, window_s),)


def window(*limits: UserLimit, max_users: int = 1000, shared: int | None = None) -> SlidingWindow:
    neighbourhoods = SlidingWindow(limits, shared) if shared is not None else None
    return SlidingWindow(limits, max_users, neighbourhoods)
