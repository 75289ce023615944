"""What each user had left when the store last answered.

With it a process that loses the store does not hand out fresh windows: whoever had used up most of a limit
begins with its share of the rest.
"""

from __future__ import annotations

from autoglm_throttle.model import UserLimit

SIZE = 100_000
"""Users. With one limit each takes some 220 bytes, and 30 to 60 more for each further limit."""


class LastSeen:
    """The newest answers, by user.

    They are kept in two halves. When the young one is full it becomes the old one, and what was old is
    forgotten: so the last ``size / 2`` users are always remembered, at most ``size``, and a note is one
    write into a dictionary. A list in the order of use would cost half as much memory again.

    Args:
        size: most users remembered, of all kinds together; >= 2.
    """

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, size: int = SIZE) -> None:
        self._half = size // 2
        self._young: dict[str, tuple[float, ...]] = {}
        self._old: dict[str, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def __repr__(self) -> str:
        return f"LastSeen({len(self)} users)"

    def note(self, kind: str, user: str, remaining: tuple[int, ...], now: float) -> None:
        """Remember an answer.

        Args:
            kind: name of the set of limits.
            user: identity text. All are equally long, so that joined to a kind they stay apart.
            remaining: units left of each limit.
            now: monotonic seconds.
        """
        young = self._young
        young[user + kind] = (now, *remaining)
        if len(young) >= self._half:
            self._old, self._young = young, {}

    def seed(
        self, kind: str, user: str, limits: tuple[UserLimit, ...], processes: int, now: float
    ) -> tuple[int, ...] | None:
        """What one of several processes may let a user begin with: its part of what was left, rounded down.

        A limit whose window has passed since then is whole again: there it is the fair share.

        Args:
            kind: as for `note`.
            user: as for `note`.
            limits: in the order of ``remaining``.
            processes: >= 1.
            now: monotonic seconds.

        Returns:
            Units for each limit; None if the user was not seen within any of the windows.
        """
        key = user + kind
        seen = self._young.get(key) or self._old.get(key)
        if seen is None:
            return None
        age_s = now - seen[0]
        if age_s >= max(limit.window_s for limit in limits):
            return None
        return tuple(
            int(left) // processes if age_s < limit.window_s else -(-limit.limit // processes)
            for limit, left in zip(limits, seen[1:], strict=True)
        )
