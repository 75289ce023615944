"""Pending writes of a process to the store of its fleet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from autoglm_throttle.types import BreakerCause, BreakerState, Outcome

MAX_WRITES: Final = 64
"""Maximum pending writes per breaker: more than the usual number of concurrent probes.

The oldest is dropped beyond that: a lease expires by itself.
"""


@dataclass(frozen=True, slots=True)
class OpenMessage:
    """This process has opened a breaker."""

    name: str
    until_s: float
    """Monotonic end of the open period; afterwards the message is obsolete."""
    rounds: int
    cause: BreakerCause
    known_version: int
    """Version of the state that this process knew when it opened."""
    breaker_was_current: bool = True
    """Whether the breaker had applied that version by then."""


@dataclass(frozen=True, slots=True)
class OperatorCommand:
    """Operator command of this process, or its restoration after the store lost it."""

    name: str
    state: BreakerState
    known_version: int
    breaker_was_current: bool = True
    is_restore: bool = False
    """Whether the store lost the command; newer commands of others then take precedence."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a probe, or the return of its lease."""

    name: str
    ticket: str
    version: int
    outcome: Outcome
    successes_needed: int
    wait_s: float
    until_s: float
    """Monotonic end of the lease; afterwards the result is obsolete."""


Write: TypeAlias = OpenMessage | OperatorCommand | ProbeResult


class PendingWrites:
    """Pending writes of each breaker in order, with only the newest state write.

    The lock of its owner guards it.
    """

    def __init__(self) -> None:
        self._by_breaker: dict[str, dict[str, Write]] = {}
        """By name, then by ticket; a state write has the empty ticket."""

    def __len__(self) -> int:
        return sum(len(writes) for writes in self._by_breaker.values())

    def __repr__(self) -> str:
        return f"PendingWrites({len(self)} pending writes of {len(self._by_breaker)} breakers)"

    def put(self, write: Write) -> None:
        """Add a write. A new state ends the probes of the previous one and drops their results."""
        writes = self._by_breaker.setdefault(write.name, {})
        # Returned leases stay: the store must free their slots in any state.
        if not isinstance(write, ProbeResult):
            for ticket in [key for key, old in writes.items() if not _is_release(old)]:
                del writes[ticket]
        writes[_ticket(write)] = write
        if len(writes) > MAX_WRITES:
            del writes[next(iter(writes))]

    def has_state(self, name: str) -> bool:
        """Whether a state write of that breaker is pending: states from the fleet may be older meanwhile."""
        return "" in self._by_breaker.get(name, ())

    def next_write(self, now: float, name: str | None = None) -> Write | None:
        """Return the next write of this breaker or of any; drop obsolete ones.

        Args:
            now: monotonic seconds.
            name: None: the breaker that has waited longest.
        """
        for breaker_name in list(self._by_breaker) if name is None else [name]:
            writes = self._by_breaker.get(breaker_name, {})
            for ticket, write in list(writes.items()):
                if isinstance(write, OperatorCommand) or now < write.until_s:
                    return write
                del writes[ticket]
            self._by_breaker.pop(breaker_name, None)
        return None

    def remove(self, write: Write) -> None:
        """Remove a write that is done; a newer one in its place stays."""
        writes = self._by_breaker.get(write.name, {})
        if writes.get(_ticket(write)) is write:
            del writes[_ticket(write)]
        if not writes:
            self._by_breaker.pop(write.name, None)

    def postpone(self, name: str) -> None:
        """Postpone the writes of a breaker after a failure: others come first."""
        if name in self._by_breaker:
            self._by_breaker[name] = self._by_breaker.pop(name)


def _ticket(write: Write) -> str:
    return write.ticket if isinstance(write, ProbeResult) else ""


def _is_release(write: Write) -> bool:
    return isinstance(write, ProbeResult) and write.outcome is Outcome.NEUTRAL
