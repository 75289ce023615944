"""Checks which commands a user of a Redis server may run, without running any.

The commands are put into a transaction that is then discarded. The server checks the permissions of a
command when it queues it, and names the rejected one. Inside a script it would not name it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

Execute = Callable[..., Any]
"""Sends a command and returns its reply; raises redis-py's errors."""

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
"""Command -> arguments after its key or channel: the fewest with which the server checks permissions."""


@dataclass(frozen=True, slots=True)
class MissingPermission:
    """Missing permissions."""

    commands: tuple[str, ...]
    keys: bool
    """Whether the user has no access to the keys below the prefix."""
    channels: bool = False
    """The same for the channels."""


def missing_permission(execute: Execute, commands: Iterable[str], key: str) -> MissingPermission | None:
    """Return the missing permissions for some commands on a key; None if the server rejects the check.

    Nothing is written, independent of the replies.
    """
    from redis.exceptions import NoPermissionError, ResponseError

    try:
        execute("MULTI")
    except NoPermissionError:
        return None
    missing: list[str] = []
    keys = channels = False
    for command in commands:
        try:
            execute(*_call(command, key))
        except NoPermissionError as error:
            if "command" in str(error):
                missing.append(command)
            elif "channel" in str(error):
                channels = True
            else:
                keys = True
        except ResponseError:
            pass  # another error, such as full memory: the counting check reports it
    execute("DISCARD")
    return MissingPermission(tuple(missing), keys, channels)


def _call(command: str, key: str) -> Sequence[object]:
    if command in ("time", "ping"):
        return (command.upper(),)
    if command == "eval":
        return ("EVAL", "return 0", 1, key)
    if command == "evalsha":
        return ("EVALSHA", _NO_SHA, 1, key)
    return (command.upper(), key, *ARGUMENTS[command])
