"""Limits and windows of the shapes that tests ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoglm_throttle.limiting import sliding_window
from autoglm_throttle.limiting.decisions import decision_of
from autoglm_throttle.types import Decision, UserLimit

Limits = tuple[UserLimit, ...]


class SlidingWindow:
    """A window whose callers name users, and get decisions in their public form."""

    def __init__(self, limits: Limits, max_users: int, neighbourhoods: SlidingWindow | None = None) -> None:
        others = None if neighbourhoods is None else neighbourhoods.tested
        self.tested: sliding_window.SlidingWindow = sliding_window.SlidingWindow(limits, max_users, others)

    def __getattr__(self, name: str) -> Any:
        if name == "tested":  # a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self.tested, name)

    def __len__(self) -> int:
        return len(self.tested)

    def find(self, user: str, units: int, now: float, group: str = "") -> Any:
        account = self.tested.accounts.get(user)
        if account is None:
            account = self.tested.new_account(user, units, now)
        return account if account is not None else self.tested.shared_account(group, units, now)

    def hit(self, user: str, units: int, now: float, group: str = "") -> Decision:
        return decision_of(self.tested.hit(self.find(user, units, now, group), units, now))

    def test(self, account: Any, units: int, now: float, within: Sequence[int] | None = None) -> Decision:
        if within is None:
            return decision_of(self.tested.test(account, units, now))
        return decision_of(self.tested.test_within(account, units, now, within))

    def give_back(self, user: str, units: int, charged_at: float, now: float, group: str = "") -> bool:
        found = self.tested.give_back(user, units, charged_at, now)
        return found or self.tested.give_back_shared(group, units, charged_at, now)


def limit(units: int, window_s: int) -> UserLimit:
    return UserLimit(f"user-{window_s}s", units, window_s)


def per(units: int, window_s: int = 60) -> Limits:
    return (limit(units, window_s),)


def window(*limits: UserLimit, max_users: int = 1000, shared: int | None = None) -> SlidingWindow:
    neighbourhoods = SlidingWindow(limits, shared) if shared is not None else None
    return SlidingWindow(limits, max_users, neighbourhoods)
