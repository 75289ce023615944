"""Which commands a user of a Redis server may run, found out without running any.

The commands are put into a transaction that is then discarded: the server checks the rights of a command when
it takes it in, and says which one it refuses. Inside a script it would not say that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

Ask = Callable[..., Any]
"""Sends a command and gives its reply; raises what redis-py raises."""

_NO_SHA: Final = "0" * 40

ARGUMENTS: Final[dict[str, tuple[object, ...]]] = {
    "lindex": (0,),
    "llen": (),
    "lpush": (0,),
    "lrem": (1, 0),
    "rpop": (),
    "ltrim": (0, 0),
    "del": (),
    "get": (),
    "set": (0,),
    "pexpire": (1,),
    "hget": (0,),
    "hset": (0, 0),
    "hdel": (0,),
    "hgetall": (),
    "zadd": (0, 0),
    "zcard": (),
    "zremrangebyscore": (0, 0),
    "zcount": (0, 0),
    "zrem": (0,),
    "zscore": (0,),
    "hmget": (0,),
    "publish": (0,),
    "subscribe": (),
}
"""Command -> what stands after its key or channel: as much as the server wants before it looks at rights."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What is missing."""

    commands: tuple[str, ...]
    keys: bool
    """Whether the keys below the prefix are closed to the user."""
    channels: bool = False
    """The same of the channels."""


def refused(ask: Ask, commands: Iterable[str], key: str) -> Refused | None:
    """What the server would refuse of some commands on a key; None if it does not let itself be asked.

    Nothing is written, whatever the answer.
    """
    from redis.exceptions import NoPermissionError, ResponseError

    try:
        ask("MULTI")
    except NoPermissionError:
        return None
    missing: list[str] = []
    keys = channels = False
    for command in commands:
        try:
            ask(*_call(command, key))
        except NoPermissionError as error:
            if "command" in str(error):
                missing.append(command)
            elif "channel" in str(error):
                channels = True
            else:
                keys = True
        except ResponseError:
            pass  # of another kind, such as a full memory: counting tells
    ask("DISCARD")
    return Refused(tuple(missing), keys, channels)


def _call(command: str, key: str) -> Sequence[object]:
    if command in ("time", "ping"):
        return (command.upper(),)
    if command == "eval":
        return ("EVAL", "return 0", 1, key)
    if command == "evalsha":
        return ("EVALSHA", _NO_SHA, 1, key)
    return (command.upper(), key, *ARGUMENTS[command])
