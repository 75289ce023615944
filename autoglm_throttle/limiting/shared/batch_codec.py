"""What makes entries into a call and its reply into answers, and what carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from autoglm_throttle.limiting.shared.store import Trouble

Words = tuple[list[str], list[str | int]]
"""KEYS and ARGV of one script call."""


class Entry(Protocol):
    """What travels: one question, or one word that needs no answer."""

    @property
    def keys(self) -> list[str]:
        """What it touches; counted against `BatchRules.batch_keys`."""
        ...

    @property
    def tag(self) -> int:
        """Entries of one call must have one tag where the server wants that (Cluster)."""
        ...


E = TypeVar("E", bound=Entry)
A = TypeVar("A")


class Codec(Protocol[E, A]):
    """Entries to calls and replies to answers."""

    def encode(self, entries: Sequence[E]) -> Words:
        """One call for all entries."""
        ...

    def decode(self, reply: object, entries: Sequence[E]) -> Sequence[A | Trouble]:
        """One answer for each entry, in order; whatever for one that was only told.

        Raises:
            ValueError: the reply does not fit the entries.
        """
        ...

    def undo(self, entry: E, answer: A) -> E | None:
        """What takes back an answer that nobody heard; None if it changed nothing."""
        ...


class Sender(Protocol):
    """Carries calls; it never raises but for a cancellation."""

    def __call__(self, calls: Sequence[Words], wanted: Callable[[], bool]) -> Awaitable[Sequence[object]]:
        """Send all calls at once.

        Args:
            calls: each with keys of one tag.
            wanted: whether they may still be sent, to be asked whenever something had to be waited for: what
                was decided without the store meanwhile must not be spent in it, too.

        Returns:
            For each call its reply, or a `Trouble`; `Trouble.TIMEOUT` if it was not wanted any more.
        """
        ...
