"""Upper bound of the script: a blocking socket, prebuilt bytes, hiredis, and no event loop.

*one call each*: a script call for each decision, one write for all of them: the pipelined floor of the bars.
*one call for all*: one script call for all decisions of one depth, as a perfect batcher would send it.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Sequence

import hiredis

from autoglm_throttle.store.protocol import VALUES
from autoglm_throttle.types import UserLimit
from benchmarks.shared import calls
from benchmarks.shared.drive import Tally, clock

READ = 1 << 18

Batch = tuple[bytes, int]
"""Bytes to send, and the number of replies."""


def one_call_each(users: Sequence[str], limit: UserLimit) -> Batch:
    """Build a call for each of these users."""
    return b"".join(calls.packed([user], limit) for user in users), len(users)


def one_call_for_all(users: Sequence[str], limit: UserLimit) -> Batch:
    """Build one call for all of these users."""
    return calls.packed(users, limit), 1


FLOORS: dict[str, Callable[[Sequence[str], UserLimit], Batch]] = {
    "floor": one_call_each,
    "floor-batch": one_call_for_all,
}


class Floor:
    """A connection that sends its batches repeatedly."""

    def __init__(self, port: int, batches: Sequence[Batch]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()
        self._batches = itertools.cycle(batches)

    def run(self, seconds: float) -> Tally:
        """Send the batches one after another, each after the reply to the one before.

        Raises:
            hiredis.ReplyError: a reply is an error.
        """
        tally = Tally()
        begun = now = clock()
        while now < begun + seconds:
            sent, replies = next(self._batches)
            self._socket.sendall(sent)
            decisions = admitted = 0
            while replies:
                reply = self._reader.gets()
                if reply is False:
                    self._reader.feed(self._socket.recv(READ))
                    continue
                if isinstance(reply, hiredis.ReplyError):
                    raise reply
                replies -= 1
                decisions += len(reply) // VALUES
                admitted += calls.admitted(reply)
            then, now = now, clock()
            tally.admitted += admitted
            tally.rejected += decisions - admitted
            tally.waits_s.extend([now - then] * decisions)
        tally.seconds = now - begun
        return tally

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
