"""Clients of a closed loop: each streams one completion after the other, and obeys Retry-After."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

TOKENS = 120
GOOD_S = 1.0
"""Longest time to the first token of a good answer."""

UNTOLD_S = 0.5
"""Pause after a rejection that names no time."""

IDLE_S = 1.0
"""Longest pause with an open connection: servers close an idle one after 5 s."""

TIMEOUT_S = 60.0
MIX = {"high": 1, "mid": 3, "low": 6}
"""Clients of each ten that state a priority."""


def request(tokens: int, priority: str) -> bytes:
    """Return the bytes of a request for a stream."""
    body = json.dumps(
        {
            "model": "m",
            "messages": [{"role": "user", "content": "The service answers requests"}],
            "max_tokens": tokens,
            "temperature": 1,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    stated = f"x-priority: {priority}\r\n".encode() if priority else b""
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n%b\r\n%b" % (len(body), stated, body)
    )


@dataclass
class Counts:
    """What the clients of one run have seen."""

    ends_s: list[float] = field(default_factory=list)
    """Ends of complete answers, since the start."""
    first_token_s: list[float] = field(default_factory=list)
    """Time to the first data of each complete answer."""
    first_token_of_high_s: list[float] = field(default_factory=list)
    rejected: int = 0
    rejected_of_high: int = 0
    rejected_in_stream: int = 0
    """Answers that began with 200 and held nothing but a rejection: of many requests at once, vLLM's own
    limit rejects the later ones so.
    """
    losses: Counter[str] = field(default_factory=Counter)
    """Requests whose connection failed, or whose answer was an error, by reason."""
    pauses_s: list[float] = field(default_factory=list)

    def figures(self, seconds: float) -> dict[str, Any]:
        """Return the figures of the run."""
        first, high = sorted(self.first_token_s), sorted(self.first_token_of_high_s)
        tries_of_high = len(high) + self.rejected_of_high
        return {
            "rps": sum(end <= seconds for end in self.ends_s) / seconds,
            "good_rps": sum(
                began <= GOOD_S and end <= seconds
                for began, end in zip(self.first_token_s, self.ends_s, strict=True)
            )
            / seconds,
            "first_token_p50_s": _quantile(first, 0.5),
            "first_token_p95_s": _quantile(first, 0.95),
            "rejected": self.rejected,
            "rejected_in_stream": self.rejected_in_stream,
            "lost": self.losses.total(),
            "pause_p50_s": _quantile(sorted(self.pauses_s), 0.5),
            "pause_max_s": max(self.pauses_s, default=0.0),
            "rejected_per_served": (self.rejected + self.rejected_in_stream) / max(1, len(first)),
            "high_first_token_p95_s": _quantile(high, 0.95),
            "high_served": len(high) / tries_of_high if tries_of_high else 0.0,
        }


def _quantile(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) if ordered else 0.0


@dataclass(frozen=True)
class Head:
    """Head of an answer."""

    status: int
    fields: dict[str, str]

    @property
    def pause_s(self) -> float:
        """Return the seconds that a rejected client waits: in milliseconds, where the answer has them."""
        if "retry-after-ms" in self.fields:
            return float(self.fields["retry-after-ms"]) / 1e3
        return float(self.fields.get("retry-after", UNTOLD_S))


async def _head(reader: asyncio.StreamReader) -> Head:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return Head(int(first.split(" ", 2)[1]), {name.lower(): value.strip() for name, _, value in pairs})


async def _stream(reader: asyncio.StreamReader, sent_s: float) -> tuple[float, bytes]:
    """Read a chunked event stream to its end; return the time to its first data, and the data."""
    loop, first_s, parts = asyncio.get_running_loop(), 0.0, []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        part = await reader.readexactly(size + 2)
        parts.append(part)
        if not first_s and b"data:" in part:
            first_s = loop.time() - sent_s
    await reader.readexactly(2)
    return first_s, b"".join(parts)


class Caller:
    """One client with one connection.

    Args:
        port: of the server.
        counts: of all clients of the run.
        priority: that it states; empty: none.
        tokens: of each answer.
    """

    def __init__(self, port: int, counts: Counts, priority: str = "", tokens: int = TOKENS) -> None:
        self._port = port
        self._counts = counts
        self.priority = priority
        self._is_high = priority == "high"
        self._request = request(tokens, priority)
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def loop(self, began_s: float, until_s: float) -> None:
        """Ask again and again until ``until_s``; the last answer may end later."""
        now = asyncio.get_running_loop().time
        while now() < until_s:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    pause_s = await self._ask(began_s)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self._counts.losses[type(error).__name__] += 1
                self.close()
                pause_s = UNTOLD_S
            await asyncio.sleep(min(pause_s, max(0.0, until_s - now())))
        self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _ask(self, began_s: float) -> float:
        """Send one request and read its answer; return the pause until the next."""
        now, counts = asyncio.get_running_loop().time, self._counts
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._connection
        sent_s = now()
        writer.write(self._request)
        head = await _head(reader)
        if head.status == 200:
            first_s, data = await _stream(reader, sent_s)
            return self._end_of_stream(first_s, data, now() - began_s)
        await reader.readexactly(int(head.fields.get("content-length", "0")))
        if head.fields.get("connection") == "close":
            self.close()
        if head.status not in {429, 503}:
            counts.losses[str(head.status)] += 1
            return UNTOLD_S
        counts.rejected += 1
        counts.rejected_of_high += self._is_high
        counts.pauses_s.append(head.pause_s)
        if head.pause_s > IDLE_S:
            self.close()
        return head.pause_s

    def _end_of_stream(self, first_s: float, data: bytes, end_s: float) -> float:
        """Count an answer that began with 200; return the pause until the next request."""
        counts = self._counts
        if b'"finish_reason":"length"' in data:
            counts.first_token_s.append(first_s)
            if self._is_high:
                counts.first_token_of_high_s.append(first_s)
            counts.ends_s.append(end_s)
            return 0.0
        if b'"code": 503' in data:  # an error within the stream
            counts.rejected_in_stream += 1
            counts.rejected_of_high += self._is_high
        else:
            counts.losses[data[-200:].decode(errors="replace")] += 1
        return UNTOLD_S


async def run(
    port: int, clients: int, seconds: float, *, mixed: bool = False, tokens: int = TOKENS
) -> Counts:
    """Let clients ask for ``seconds``, and wait until all have their last answer; ``mixed``: by priority."""
    counts, began_s = Counts(), asyncio.get_running_loop().time()
    order = [name for name, share in MIX.items() for _ in range(share)] if mixed else [""]
    callers = [Caller(port, counts, order[number % len(order)], tokens) for number in range(clients)]
    await asyncio.gather(*(caller.loop(began_s, began_s + seconds) for caller in callers))
    return counts
