"""Transport of a batch: its entries, their codec, and the sender of its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from autoglm_throttle.store.user_limit_store import StoreErrorKind

ScriptArguments = tuple[list[str], list[str | int]]
"""KEYS and ARGV of one script call."""


class BatchEntry(Protocol):
    """One check, or one refund that needs no answer."""

    @property
    def keys(self) -> list[str]:
        """Its keys; counted against `StoreSettings.redis_batch_keys`."""
        ...

    @property
    def tag(self) -> int:
        """Partition: entries of one call must have one tag where the server requires that (Cluster)."""
        ...


E = TypeVar("E", bound=BatchEntry)
A = TypeVar("A")


class BatchCodec(Protocol[E, A]):
    """Encodes entries into calls and decodes replies into answers."""

    def encode(self, entries: Sequence[E]) -> ScriptArguments:
        """Encode all entries into one call."""
        ...

    def decode(self, reply: object, entries: Sequence[E]) -> Sequence[A | StoreErrorKind]:
        """Return one answer for each entry, in order; a one-way entry gets any value.

        Raises:
            ValueError: the reply does not fit the entries.
        """
        ...

    def undo(self, entry: E, answer: A) -> E | None:
        """Return the entry that refunds an answer without a receiver; None if it changed nothing."""
        ...


class BatchSender(Protocol):
    """Sends calls; it never raises but for a cancellation."""

    def __call__(
        self, calls: Sequence[ScriptArguments], wanted: Callable[[], bool]
    ) -> Awaitable[Sequence[object]]:
        """Send all calls at once.

        Args:
            calls: each with keys of one tag.
            wanted: whether they may still be sent; called again after every wait. A request that was
                decided without the store in the meantime must not be charged in the store, too.

        Returns:
            For each call its reply, or a `StoreErrorKind`; `StoreErrorKind.TIMEOUT` if it is not wanted.
        """
        ...


@dataclass(slots=True)
class BatchTransport(Generic[E, A]):
    """Encodes, sends and decodes the calls of a batch."""

    codec: BatchCodec[E, A]
    sender: BatchSender
    split: bool = False
    """Whether entries of different tags need calls of their own."""
