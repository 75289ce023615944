"""A virtual-time event loop: when no task is ready, the clock moves to the next timer.

Threads, sockets, subprocesses and signals are not supported, since virtual time cannot wait for them.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import threading
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Final, NoReturn, Protocol, TypeVarTuple, Unpack

import anyio.to_thread

from autoglm_throttle.testing.manual_throttle import ManualClock

THREADS: Final = (
    "threads do not run in virtual time: make the endpoint, dependency or background task 'async def', "
    "or measure it over HTTP"
)
SOCKETS: Final = (
    "sockets do not run in virtual time: replace the client or the store by a double, or measure over HTTP"
)
OUTSIDE: Final = "nothing outside the loop runs in virtual time: measure over HTTP"

_NAMES: Final[Mapping[str, str]] = {  # Alternative -> unsupported methods of the loop
    THREADS: "run_in_executor",
    SOCKETS: "getaddrinfo getnameinfo create_connection create_server create_datagram_endpoint"
    " create_unix_connection create_unix_server connect_accepted_socket start_tls sendfile sock_accept"
    " sock_connect sock_recv sock_recv_into sock_recvfrom sock_recvfrom_into sock_sendall sock_sendfile"
    " sock_sendto",
    OUTSIDE: "add_reader add_writer connect_read_pipe connect_write_pipe subprocess_exec subprocess_shell"
    " add_signal_handler",
}
UNSUPPORTED: Final = {name: alternative for alternative, names in _NAMES.items() for name in names.split()}

MAX_TASKS_NAMED = 10  # Pending tasks named in a message

_Ts = TypeVarTuple("_Ts")


class MovableClock(Protocol):
    """Clock interface of the virtual loop; ``autoglm_throttle.testing.ManualClock`` is one."""

    def __call__(self) -> float:
        """Return the current time in seconds."""

    def advance(self, by_s: float) -> object:
        """Advance the clock by ``by_s`` seconds, 0 or more."""


class VirtualTimeError(RuntimeError):
    """An operation is not possible in virtual time; the text names it, and an alternative."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that advances its own clock; None: a new `ManualClock`.

    Timeouts, sleeps, streams and task groups of asyncio and anyio work as usual, in a deterministic order.
    Unsupported calls raise VirtualTimeError, there and from the loop. The loop raises RuntimeError, with the
    waiting tasks, where nothing is ready and no timer is set, or more time would pass than `limit` allows.
    """

    def __init__(self, clock: MovableClock | None = None) -> None:
        self.clock: MovableClock = ManualClock() if clock is None else clock
        self._owner_thread_id = threading.get_ident()
        self._violation = ""
        self._thread_block: asyncio.Task[None] | None = None
        self._limit_s, self._limit_text = math.inf, ""
        super().__init__(_VirtualSelector(self._wait))

    def time(self) -> float:
        """Return the time of the clock."""
        return self.clock()

    def run_forever(self) -> None:
        """Run until it is stopped; from here on, sync functions of anyio and Starlette raise an error."""
        self._owner_thread_id = threading.get_ident()
        if self._thread_block is None:
            # In a task: anyio looks up the thread limiter of the running event loop.
            self._thread_block = self.create_task(self._block_threads())
        super().run_forever()

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Schedule as `call_soon` does; only the loop's own thread may call it."""
        if threading.get_ident() != self._owner_thread_id:
            self._raise_unsupported(f"a call from the thread {threading.current_thread().name!r}: {THREADS}")
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Schedule a timer; one at infinity, as of ``anyio.sleep_forever()``, is never set."""
        if when == math.inf:
            return asyncio.TimerHandle(when, callback, args, self, context)
        return super().call_at(when, callback, *args, context=context)

    def limit(self, at_most_s: float, activity: str) -> None:
        """Limit the virtual time that may still pass, in seconds from now, for an activity.

        A loop with tasks that wake each other never runs out of work, so it needs a limit.
        """
        self._limit_s = self.time() + at_most_s
        self._limit_text = f"{activity} is not over after {at_most_s:g} s"

    async def _block_threads(self) -> None:
        """Make the anyio thread limiter of this loop raise: sync endpoints acquire it."""

        # anyio yields once before it acquires a thread, so this task always runs first.
        async def acquire(*_: object) -> NoReturn:
            self._raise_unsupported(THREADS)

        limiter = anyio.to_thread.current_default_thread_limiter()
        blocked = type("Barred", (type(limiter),), {"__slots__": (), "acquire": acquire})
        limiter.__class__ = blocked  # this one object; its slots leave no room for a method of its own

    def _raise_unsupported(self, text: str) -> NoReturn:
        task = asyncio.current_task(self) if threading.get_ident() == self._owner_thread_id else None
        self._violation = f"{task.get_name()}: {text}" if task is not None else text
        raise VirtualTimeError(self._violation)

    def _wait(self, timeout_s: float | None) -> None:
        # Raised from the loop, too, since the application may have caught the first exception.
        if self._violation:
            text, self._violation = self._violation, ""
            raise VirtualTimeError(text)
        if timeout_s is None:
            raise RuntimeError(f"nothing is ready and no timer is set; {_pending(self)}")
        if timeout_s > 0.0:
            if self.time() + timeout_s > self._limit_s:
                raise RuntimeError(f"{self._limit_text} of virtual time; {_pending(self)}")
            self.clock.advance(timeout_s)


class _VirtualSelector(selectors.SelectSelector):
    """Replaces the wait for file descriptors."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Advance the time; no file is ever ready."""
        self._wait(timeout)
        return []


def _pending(loop: VirtualLoop) -> str:
    tasks = sorted(
        f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', 'a coroutine')})"
        for task in asyncio.all_tasks(loop)
    )
    more = f" and {len(tasks) - MAX_TASKS_NAMED} more" if len(tasks) > MAX_TASKS_NAMED else ""
    named = f"these tasks wait forever: {', '.join(tasks[:MAX_TASKS_NAMED])}{more}"
    return named if tasks else "no task waits"


def _unsupported_method(name: str, reason: str) -> Callable[..., NoReturn]:
    def method(self: VirtualLoop, *_: object, **__: object) -> NoReturn:
        self._raise_unsupported(f"{name} was called: {reason}")

    method.__name__ = name
    method.__doc__ = f"Unsupported: {reason}."
    return method


for _name, _reason in UNSUPPORTED.items():
    setattr(VirtualLoop, _name, _unsupported_method(_name, _reason))
