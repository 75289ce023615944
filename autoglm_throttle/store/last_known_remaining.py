"""Units left of each user at the store's last answer.

A process that loses the store therefore does not start with fresh windows: a user that had used up most of a
limit begins with its share of the rest.
"""

from __future__ import annotations

from autoglm_throttle.types import UserLimit


class LastKnownRemaining:
    """The newest answers, by user.

    They are stored in two halves. When the young half is full it replaces the old one.
    So the last ``size / 2`` users are always present, at most ``size``, and a record is one dictionary write.
    With one limit a user takes some 220 bytes, and 30 to 60 more for each further limit.

    Args:
        size: most users stored, of all kinds together; >= 2.
    """

    __slots__ = ("_old", "_young", "size")

    def __init__(self, size: int) -> None:
        self.size: int = size
        self._young: dict[str, tuple[float, ...]] = {}
        self._old: dict[str, tuple[float, ...]] = {}

    def __len__(self) -> int:
        return len(self._young.keys() | self._old.keys())

    def __repr__(self) -> str:
        return f"LastKnownRemaining({len(self)} users)"

    def record(self, kind: str, user: str, remaining: tuple[int, ...], now: float) -> None:
        """Store an answer.

        Args:
            kind: name of the set of limits.
            user: identity text. All are equally long, so that a user and a kind join without ambiguity.
            remaining: units left of each limit.
            now: monotonic seconds.
        """
        young = self._young
        young[user + kind] = (now, *remaining)
        # Two halves instead of an order of use: a list of uses would cost half as much memory again.
        if len(young) >= self.size // 2:
            self._old, self._young = young, {}

    def seed(
        self, kind: str, user: str, limits: tuple[UserLimit, ...], processes: int, now: float
    ) -> tuple[int, ...] | None:
        """Return the units that one of several processes may give a user: its part of the rest, rounded down.

        A limit with a window that has passed since then is whole again: its part is the fair share.

        Args:
            kind: as for `record`.
            user: as for `record`.
            limits: in the order of ``remaining``.
            processes: >= 1.
            now: monotonic seconds.

        Returns:
            Units for each limit; None if the user was not recorded within any of the windows.
        """
        key = user + kind
        entry = self._young.get(key) or self._old.get(key)
        if entry is None:
            return None
        age_s = now - entry[0]
        if age_s >= max(limit.window_s for limit in limits):
            return None
        return tuple(
            int(left) // processes if age_s < limit.window_s else -(-limit.limit // processes)
            for limit, left in zip(limits, entry[1:], strict=True)
        )
