"""Protocol of the breaker store; the first lines of its script, `breaker.lua`, document the numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias
from urllib.parse import quote, unquote

from autoglm_throttle.types import BreakerCause, BreakerState, Outcome, ProbeLease, RemoteBreakerState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autoglm_throttle.settings.groups.store import StoreSettings
    from autoglm_throttle.types import ProbeRequest

ScriptArguments: TypeAlias = tuple[tuple[str, ...], tuple[str | int, ...]]  # Keys and arguments of one call

# Redis commands that the script needs, on the keys and the channel below ``REDIS_PREFIX``.
SCRIPT_RIGHTS: Final = (
    "evalsha eval time hmget hset del pexpire publish zadd zcount zrem zremrangebyscore zscore"
)

RIGHTS: Final = f"{SCRIPT_RIGHTS} subscribe ping"  # Redis commands that shared breakers need

# Longest period in seconds that is sent: the script counts in microseconds as floats.
MAX_PERIOD_S: Final = 365.0 * 86400.0

_STATE_VALUES: Final = 5


@dataclass(frozen=True, slots=True)
class StateWrite:
    """A state that this process has set: an opening, or the state of an operator's command."""

    name: str
    state: BreakerState
    known_version: int  # version of the state that this process knew at that time
    until_s: float = math.inf  # monotonic end of an open period; afterwards the write is obsolete
    rounds: int = 0
    cause: BreakerCause = BreakerCause.OPERATOR
    is_applied: bool = True  # whether the breaker had applied that version by then
    # Whether the store has lost the state; newer commands of others then take precedence.
    is_restore: bool = False

    ticket: ClassVar[str] = ""  # a process has one state write of a breaker at most


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a probe, or the return of its lease."""

    name: str
    ticket: str
    until_s: float  # monotonic end of the lease; afterwards the result is obsolete
    version: int = 0
    outcome: Outcome = Outcome.NEUTRAL
    successes_needed: int = 0
    wait_s: float = 0.0


Write: TypeAlias = StateWrite | ProbeResult


# Reply of the script to a command: whether it was executed, else nothing was written, and the state is the
# reason; the state after the command, None: nothing is stored; and the lease if a probe may be made now.
Reply: TypeAlias = tuple[bool, RemoteBreakerState | None, ProbeLease | None]


def escape_name(name: str) -> str:
    """Percent-encode a name, without blanks and braces; the encoding is reversible."""
    return quote(name, safe="", errors="surrogatepass")


class BreakerProtocol:
    """Builds the arguments of all commands of one process, which ignores messages with its ``process_id``."""

    def __init__(self, settings: StoreSettings, process_id: str) -> None:
        self._prefix = f"{settings.redis_prefix}:{settings.service}"
        self.channel: str = f"{self._prefix}:brk:ev"  # channel of published changes
        self.process_id: str = process_id
        self._tickets = itertools.count(1)

    def keys(self, name: str) -> tuple[str, str]:
        """Return the keys of a breaker's state and probes; a hash tag puts them in one cluster slot."""
        # Braces mark the hash tag of Redis Cluster; `escape_name` keeps braces out of the name.
        prefix = f"{self._prefix}:{{brk:{escape_name(name)}}}"
        return f"{prefix}:h", f"{prefix}:t"

    def new_ticket(self) -> str:
        """Return the ticket of a new probe, unique in the fleet."""
        return f"{self.process_id}:{next(self._tickets)}"

    def write(self, write: Write, own_version: int, now: float) -> ScriptArguments:
        """Build a write; ``own_version``: newest version that this process has written."""
        if isinstance(write, ProbeResult):
            figures = (write.outcome.value, write.successes_needed, _us(write.wait_s), write.ticket)
            return self._arguments("finish", write.name, write.version, *figures)
        if write.state is BreakerState.OPEN:
            known, opening = max(write.known_version, own_version), (write.rounds, write.cause.value)
            return self._arguments("open", write.name, known, _us(write.until_s - now), *opening)
        command = (write.state.value, int(not write.is_restore))
        return self._arguments("operate", write.name, write.known_version, *command)

    def acquire(self, name: str, known_version: int, request: ProbeRequest, ticket: str) -> ScriptArguments:
        """Build the request of a probe lease; its ticket identifies the lease."""
        limits = request.half_open_max, request.successes_needed, int(request.limits_concurrent)
        return self._arguments("acquire", name, known_version, *limits, max(1, _us(request.lease_s)), ticket)

    def read(self, names: Sequence[str]) -> ScriptArguments:
        """Build the query of several states."""
        return tuple(self.keys(name)[0] for name in names), ("read",)

    def _arguments(self, command: str, name: str, known_version: int, *more: str | int) -> ScriptArguments:
        about = (command, escape_name(name), self.channel, self.process_id, known_version)
        return self.keys(name), (*about, *more)


def parse_reply(value: Any) -> Reply:  # noqa: ANN401 - any reply
    """Parse the reply to a command other than `read`; a ValueError if it does not fit the script's format."""
    try:
        done, *state, fence = value
        remote, number = _remote(*state), int(fence)
    except (TypeError, ValueError) as error:
        raise _unexpected(value) from error
    lease = None
    if done == 1 and remote is not None and remote.state is BreakerState.HALF_OPEN:
        lease = ProbeLease(number, remote.version, remote.rounds)
    return done == 1, remote, lease


def parse_states(value: Any, names: Sequence[str]) -> dict[str, RemoteBreakerState | None]:  # noqa: ANN401 - any reply
    """Parse the reply to `read`, or raise a ValueError; None: nothing is stored, or it is invalid."""
    if not isinstance(value, list) or len(value) != _STATE_VALUES * len(names):
        raise _unexpected(value)
    parsed: dict[str, RemoteBreakerState | None] = {}
    for at, name in enumerate(names):
        try:
            parsed[name] = _remote(*value[at * _STATE_VALUES : (at + 1) * _STATE_VALUES])
        except (TypeError, ValueError):
            parsed[name] = None
    return parsed


def _unexpected(value: object) -> ValueError:
    return ValueError(f"unexpected reply of the script: {value!r:.100}")


def parse_message(data: Any) -> tuple[str, RemoteBreakerState, str] | None:  # noqa: ANN401 - any client may publish
    """Parse a published change: name, state, process that made it; None: it is not of this protocol."""
    try:
        name, *state, process_id = _text(data).split(" ")
        remote = _remote(*state)
        return None if remote is None else (unquote(name, errors="surrogatepass"), remote, process_id)
    except (TypeError, ValueError):
        return None


def _remote(version: Any, state: Any, left: Any, rounds: Any, cause: Any) -> RemoteBreakerState | None:  # noqa: ANN401
    """Parse a state from five values; a ValueError if one is invalid."""
    number = int(version)
    if number <= 0:
        return None
    parsed = BreakerState(_text(state))
    if parsed is BreakerState.RAMPING:
        raise ValueError("ramping is local to a process")  # so no process may publish it
    text = _text(cause)
    # A newer version may have more causes: the state is still valid.
    known = BreakerCause(text) if text in set(BreakerCause) else BreakerCause.REMOTE
    return RemoteBreakerState(number, parsed, max(0, int(left)) / 1e6, max(0, int(rounds)), known)


def _text(value: Any) -> str:  # noqa: ANN401
    return value.decode() if isinstance(value, bytes) else str(value)


def _us(seconds: float) -> int:
    return round(min(max(seconds, 0.0), MAX_PERIOD_S) * 1e6)
