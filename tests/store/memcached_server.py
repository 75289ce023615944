"""A small memcached: its text protocol over real sockets, in threads, so that it can hang and die."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

MONTH_S = 30 * 86_400
"""A longer expiry is an instant of the calendar: protocol.txt of memcached."""


@dataclass
class Item:
    flags: bytes
    data: bytes
    ends_s: float
    cas: int


class MemcachedServer:
    """Serves one port of this host until it is killed; may be started again, empty, on the same port.

    Args:
        clock: seconds since 1970, by which items expire.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self.port = 0
        self.commands: list[bytes] = []
        """The first word of each command."""
        self.opened = 0
        self.items: dict[bytes, Item] = {}
        self._answers = threading.Event()
        self._answers.set()
        self._lock = threading.Lock()
        self._cas = 0
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._gone = threading.Condition(self._lock)

    def __enter__(self) -> MemcachedServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def uri(self) -> str:
        return f"async+memcached://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        with self._lock:
            return len(self._connections)

    def start(self) -> None:
        self._answers.set()
        self.items = {}
        listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._begin(self._accept, listener)

    def kill(self) -> None:
        """End everything at once: new connections are refused, present ones are closed."""
        if self._listener is None:
            return
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._listener = None
        self._answers.set()
        with self._lock:
            for connection in self._connections:
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive()
        self._threads.clear()

    def hang(self) -> None:
        """Go on accepting and reading, but answer nothing, like a stopped process."""
        self._answers.clear()

    def resume(self) -> None:
        self._answers.set()

    def wait_until_left(self, timeout_s: float = 60.0) -> bool:
        """Whether all clients have closed their connections by then."""
        with self._gone:
            return self._gone.wait_for(lambda: not self._connections, timeout_s)

    def _begin(self, target: Callable[[socket.socket], None], argument: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(argument,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
                self.opened += 1
            self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                while line := lines.readline():
                    words = line.split()
                    block = lines.read(int(words[4]) + 2)[:-2] if words[0] in STORING else b""
                    self._answers.wait()
                    with self._lock:
                        self.commands.append(words[0])
                        answer = self._answer(words, block)
                    if words[-1] != b"noreply":
                        connection.sendall(answer)
            except OSError:
                pass
            finally:
                with self._gone:
                    self._connections.discard(connection)
                    self._gone.notify_all()

    def _answer(self, words: list[bytes], block: bytes) -> bytes:
        command, arguments = words[0], [word for word in words[1:] if word != b"noreply"]
        handler = HANDLERS.get(command)
        if handler is None:
            return b"VERSION 0\r\n" if command == b"version" else b"ERROR\r\n"
        return handler(self, command, arguments, block)

    def _find(self, key: bytes) -> Item | None:
        item = self.items.get(key)
        if item is not None and item.ends_s <= self.clock():
            del self.items[key]
            return None
        return item

    def answer_get(self, command: bytes, keys: list[bytes], _: bytes) -> bytes:
        found = []
        for key in keys:
            item = self._find(key)
            if item is not None:
                cas = b" %d" % item.cas if command == b"gets" else b""
                found.append(
                    b"VALUE %b %b %d%b\r\n%b\r\n" % (key, item.flags, len(item.data), cas, item.data)
                )
        return b"".join(found) + b"END\r\n"

    def answer_store(self, command: bytes, arguments: list[bytes], block: bytes) -> bytes:
        key, flags, expiry = arguments[:3]
        there = self._find(key)
        if command == b"add" and there is not None:
            return b"NOT_STORED\r\n"
        if command == b"cas":
            if there is None:
                return b"NOT_FOUND\r\n"
            if there.cas != int(arguments[4]):
                return b"EXISTS\r\n"
        self._put(key, flags, block, self._ends(int(expiry)))
        return b"STORED\r\n"

    def answer_count(self, command: bytes, arguments: list[bytes], _: bytes) -> bytes:
        item = self._find(arguments[0])
        if item is None:
            return b"NOT_FOUND\r\n"
        if not item.data.isdigit():
            return b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
        step = int(arguments[1])
        count = int(item.data) + step if command == b"incr" else max(0, int(item.data) - step)
        self._put(arguments[0], item.flags, b"%d" % count, item.ends_s)
        return b"%d\r\n" % count

    def answer_touch(self, _: bytes, arguments: list[bytes], __: bytes) -> bytes:
        item = self._find(arguments[0])
        if item is None:
            return b"NOT_FOUND\r\n"
        item.ends_s = self._ends(int(arguments[1]))
        return b"TOUCHED\r\n"

    def answer_delete(self, _: bytes, arguments: list[bytes], __: bytes) -> bytes:
        if self._find(arguments[0]) is None:
            return b"NOT_FOUND\r\n"
        del self.items[arguments[0]]
        return b"DELETED\r\n"

    def _put(self, key: bytes, flags: bytes, data: bytes, ends_s: float) -> None:
        self._cas += 1
        self.items[key] = Item(flags, data, ends_s, self._cas)

    def _ends(self, expiry_s: int) -> float:
        if expiry_s == 0:
            return float("inf")
        return expiry_s if expiry_s > MONTH_S else self.clock() + expiry_s


STORING = (b"set", b"add", b"cas")

Handler = Callable[[MemcachedServer, bytes, list[bytes], bytes], bytes]

HANDLERS: dict[bytes, Handler] = {
    b"get": MemcachedServer.answer_get,
    b"gets": MemcachedServer.answer_get,
    b"set": MemcachedServer.answer_store,
    b"add": MemcachedServer.answer_store,
    b"cas": MemcachedServer.answer_store,
    b"incr": MemcachedServer.answer_count,
    b"decr": MemcachedServer.answer_count,
    b"touch": MemcachedServer.answer_touch,
    b"delete": MemcachedServer.answer_delete,
}
