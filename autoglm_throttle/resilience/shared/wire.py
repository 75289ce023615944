"""What goes to a store of breakers and comes from it: keys, arguments, replies, messages.

The script, `breaker.lua`, says in its first lines what the numbers mean.
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
"""Seconds of the longest period that is told: more is no number of microseconds that a script can count."""

_STATE_VALUES: Final = 5
_REPLY_VALUES: Final = 7
_MESSAGE_WORDS: Final = 7


class ConfusedReply(ValueError):
    """The store answered something that is none of the script's answers."""


@dataclass(frozen=True, slots=True)
class SharedRules:
    """Where the processes of a fleet meet, and how long a caller waits for what they know."""

    prefix: str = "athr"
    service: str = "default"
    deadline_s: float = 0.05
    """Seconds, as for every other decision that a store takes part in (``BREAKER_STORE_DEADLINE_S``)."""
    cluster: bool = False
    """Whether the keys of one call must lie in one slot."""

    @property
    def channel(self) -> str:
        """Where changes are told."""
        return f"{self.prefix}:{self.service}:brk:ev"

    def keys(self, name: str) -> tuple[str, str]:
        """State and trials of a breaker; one tag, so that a cluster keeps them in one place."""
        place = f"{self.prefix}:{self.service}:{{brk:{escaped(name)}}}"
        return f"{place}:h", f"{place}:t"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the script made of a command."""

    done: bool
    """Whether it was carried out; else nothing was written, and the state is why."""
    remote: Remote | None
    """The state after it; None: nothing is stored."""
    fence: int
    """Of the newest trial."""

    def lease(self) -> Lease | None:
        """The lease that was asked for; None: it was not given."""
        if not self.done or self.remote is None or self.remote.state is not State.HALF_OPEN:
            return None
        return Lease(self.fence, self.remote.version, self.remote.rounds)


@dataclass(frozen=True, slots=True)
class Message:
    """A change that somebody tells everybody."""

    name: str
    remote: Remote
    who: str


def script() -> tuple[str, str]:
    """The script's text and its digest, by which a server knows it."""
    text = resources.files(__package__).joinpath("breaker.lua").read_text("utf-8")
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest()


def escaped(name: str) -> str:
    """A name as one word without braces, from which it can be had back."""
    return quote(name, safe="", errors="surrogatepass")


class Wire:
    """Says everything for one process.

    Args:
        rules: where the fleet meets.
        who: the process; messages of its own are not news to it.
    """

    def __init__(self, rules: SharedRules, who: str) -> None:
        self.rules: SharedRules = rules
        self.who: str = who

    def open(self, name: str, known: int, wait_s: float, rounds: int, cause: Cause) -> Words:
        """Tell of an opening; ``wait_s``: what is left of it."""
        return self._words("open", name, known, _us(wait_s), rounds, cause.value)

    def acquire(self, name: str, known: int, ask: Ask, ticket: str) -> Words:
        """Ask for a trial, which is given back by its ticket."""
        figures = (ask.half_open_max, ask.need, int(ask.threshold), max(1, _us(ask.lease_s)))
        return self._words("acquire", name, known, *figures, ticket)

    def finish(self, end: Finish) -> Words:
        """Tell how a trial ended."""
        figures = (end.outcome.value, end.need, _us(end.wait_s), end.ticket)
        return self._words("finish", end.name, end.version, *figures)

    def operate(self, name: str, known: int, state: State, *, again: bool) -> Words:
        """Tell what an operator has decided; ``again``: what the store has forgotten since."""
        return self._words("operate", name, known, state.value, int(not again))

    def read(self, names: Sequence[str]) -> Words:
        """Ask for states."""
        return tuple(self.rules.keys(name)[0] for name in names), ("read",)

    def _words(self, command: str, name: str, known: int, *more: str | int) -> Words:
        about = (command, escaped(name), self.rules.channel, self.who, known)
        return self.rules.keys(name), (*about, *more)


def reply(said: Any) -> Reply:  # noqa: ANN401 - whatever a server sends
    """Read the answer to a command other than `Wire.read`.

    Raises:
        ConfusedReply: it is none.
    """
    if not isinstance(said, list) or len(said) != _REPLY_VALUES:
        raise ConfusedReply(f"the script answered {said!r:.100}")
    try:
        return Reply(said[0] == 1, _remote(*said[1:6]), int(said[6]))
    except (TypeError, ValueError) as error:
        raise ConfusedReply(f"the script answered {said!r:.100}") from error


def states(said: Any, names: Sequence[str]) -> dict[str, Remote | None]:  # noqa: ANN401 - whatever a server sends
    """Read the answer to `Wire.read`: a state for each name; None: nothing is stored, or what nobody knows.

    Raises:
        ConfusedReply: it is none.
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


def message(data: Any) -> Message | None:  # noqa: ANN401 - anybody may publish anything
    """Read what was published; None: it is not of ours."""
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
    """A state from five values.

    Raises:
        ValueError: one of them is not what it should be.
    """
    number = int(version)
    if number <= 0:
        return None
    word = State(_text(state))
    if word is State.RAMPING:
        raise ValueError("a ramp is each process's own")
    return Remote(number, word, max(0, int(left)) / 1e6, max(0, int(rounds)), _cause(_text(cause)))


def _cause(text: str) -> Cause:
    try:
        return Cause(text)
    except ValueError:  # of a version that knows more causes: the state counts all the same
        return Cause.REMOTE


def _text(value: Any) -> str:  # noqa: ANN401
    return value.decode() if isinstance(value, bytes) else str(value)


def _us(seconds: float) -> int:
    return round(min(max(seconds, 0.0), LONGEST_S) * 1e6)
