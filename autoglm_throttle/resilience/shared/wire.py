"""Protocol of the breaker store: keys, arguments, replies and messages.

The first lines of the script, `breaker.lua`, document the meaning of the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib import resources
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from autoglm_throttle.model import Cause, State
from autoglm_throttle.resilience.shared.outbox import Finish
from autoglm_throttle.resilience.store import Ask, Lease, Remote

Words: TypeAlias = tuple[tuple[str, ...], tuple[str | int, ...]]
"""Keys and arguments of one call."""

LONGEST_S: Final = 365.0 * 86400.0
"""Longest period in seconds that is sent: the script counts in microseconds as floats."""

_STATE_VALUES: Final = 5
_REPLY_VALUES: Final = 7
_MESSAGE_WORDS: Final = 7


class ConfusedReply(ValueError):
    """The reply does not match the script's format."""


@dataclass(frozen=True, slots=True)
class SharedRules:
    """Namespace of a fleet in the store, and the deadline of its callers."""

    prefix: str = "athr"
    service: str = "default"
    deadline_s: float = 0.05
    """Seconds, as for every other decision of a store (``BREAKER_STORE_DEADLINE_S``)."""
    cluster: bool = False
    """Whether the keys of one call must lie in one slot."""

    @property
    def channel(self) -> str:
        """Channel of published changes."""
        return f"{self.prefix}:{self.service}:brk:ev"

    def keys(self, name: str) -> tuple[str, str]:
        """Return the keys of a breaker's state and probes; a hash tag puts them in one cluster slot."""
        # Braces mark the hash tag of Redis Cluster; `escape_name` keeps braces out of the name.
        place = f"{self.prefix}:{self.service}:{{brk:{escaped(name)}}}"
        return f"{place}:h", f"{place}:t"


@dataclass(frozen=True, slots=True)
class Reply:
    """Reply of the script to a command."""

    done: bool
    """Whether the command was executed; else nothing was written, and the state is the reason."""
    remote: Remote | None
    """The state after the command; None: nothing is stored."""
    fence: int
    """Fencing token of the newest probe."""

    def lease(self) -> Lease | None:
        """Return the requested lease; None: it was not granted."""
        if not self.done or self.remote is None or self.remote.state is not State.HALF_OPEN:
            return None
        return Lease(self.fence, self.remote.version, self.remote.rounds)


@dataclass(frozen=True, slots=True)
class Message:
    """A change published by a process."""

    name: str
    remote: Remote
    who: str


def script() -> tuple[str, str]:
    """Return the script's text and its SHA-1 digest for EVALSHA."""
    text = resources.files(__package__).joinpath("breaker.lua").read_text("utf-8")
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


def escaped(name: str) -> str:
    """Percent-encode a name, without blanks and braces; the encoding is reversible."""
    return quote(name, safe="", errors="surrogatepass")


class Wire:
    """Builds the arguments of all commands of one process.

    Args:
        rules: namespace of the fleet.
        process_id: marks the messages of this process, which it ignores itself.
    """

    def __init__(self, rules: SharedRules, who: str) -> None:
        self.rules: SharedRules = rules
        self.who: str = who

    def open(self, name: str, known: int, wait_s: float, rounds: int, cause: Cause) -> Words:
        """Build the report of an opening; ``wait_s``: rest of the open period."""
        return self._words("open", name, known, _us(wait_s), rounds, cause.value)

    def acquire(self, name: str, known: int, ask: Ask, ticket: str) -> Words:
        """Build the request of a probe lease; its ticket identifies the lease."""
        figures = (ask.half_open_max, ask.need, int(ask.threshold), max(1, _us(ask.lease_s)))
        return self._words("acquire", name, known, *figures, ticket)

    def finish(self, end: Finish) -> Words:
        """Build the report of a probe's outcome."""
        figures = (end.outcome.value, end.need, _us(end.wait_s), end.ticket)
        return self._words("finish", end.name, end.version, *figures)

    def operate(self, name: str, known: int, state: State, *, again: bool) -> Words:
        """Build the report of an operator command; ``is_restore``: the store has lost it."""
        return self._words("operate", name, known, state.value, int(not again))

    def read(self, names: Sequence[str]) -> Words:
        """Build the query of several states."""
        return tuple(self.rules.keys(name)[0] for name in names), ("read",)

    def _words(self, command: str, name: str, known: int, *more: str | int) -> Words:
        about = (command, escaped(name), self.rules.channel, self.who, known)
        return self.rules.keys(name), (*about, *more)


def reply(said: Any) -> Reply:  # noqa: ANN401 - any reply
    """Parse the reply to a command other than `BreakerProtocol.read`.

    Raises:
        InvalidReplyError: it has another format.
    """
    if not isinstance(said, list) or len(said) != _REPLY_VALUES:
        raise ConfusedReply(f"the script answered {said!r:.100}")
    try:
        return Reply(said[0] == 1, _remote(*said[1:6]), int(said[6]))
    except (TypeError, ValueError) as error:
        raise ConfusedReply(f"the script answered {said!r:.100}") from error


def states(said: Any, names: Sequence[str]) -> dict[str, Remote | None]:  # noqa: ANN401 - any reply
    """Parse the reply to `BreakerProtocol.read`: a state per name; None: nothing is stored, or it is invalid.

    Raises:
        InvalidReplyError: it has another format.
    """
    if not isinstance(said, list) or len(said) != _STATE_VALUES * len(names):
        raise ConfusedReply(f"the script answered {said!r:.100}")
    found: dict[str, Remote | None] = {}
    for at, name in enumerate(names):
        try:
            found[name] = _remote(*said[at * _STATE_VALUES : (at + 1) * _STATE_VALUES])
        except (TypeError, ValueError):
            found[name] = None
    return found


def message(data: Any) -> Message | None:  # noqa: ANN401 - any client may publish
    """Parse published data; None: it is not a message of this protocol."""
    try:
        words = _text(data).split(" ")
        if len(words) != _MESSAGE_WORDS:
            return None
        name, version, state, left, rounds, cause, who = words
        remote = _remote(version, state, left, rounds, cause)
        return None if remote is None else Message(unquote(name, errors="surrogatepass"), remote, who)
    except (TypeError, ValueError):
        return None


def _remote(version: Any, state: Any, left: Any, rounds: Any, cause: Any) -> Remote | None:  # noqa: ANN401
    """Parse a state from five values.

    Raises:
        ValueError: a value is invalid.
    """
    number = int(version)
    if number <= 0:
        return None
    # Ramping is local to a process, so no process may publish it.
    word = State(_text(state))
    if word is State.RAMPING:
        raise ValueError("a ramp is each process's own")
    return Remote(number, word, max(0, int(left)) / 1e6, max(0, int(rounds)), _cause(_text(cause)))


def _cause(text: str) -> Cause:
    try:
        return Cause(text)
    except ValueError:  # of a newer version with more causes: the state is still valid
        return Cause.REMOTE


def _text(value: Any) -> str:  # noqa: ANN401
    return value.decode() if isinstance(value, bytes) else str(value)


def _us(seconds: float) -> int:
    return round(min(max(seconds, 0.0), LONGEST_S) * 1e6)
