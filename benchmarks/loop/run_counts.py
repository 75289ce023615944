"""Counts of one run."""

from __future__ import annotations

from benchmarks.loop.request import Request


class RunCounts:
    """Counts the requests of one run, most of them by class.

    Args:
        from_s: start of counting; the time before is warm-up.
        until_s: end of the run.
        slo_s: objective; a later response does not count.
    """

    def __init__(self, from_s: float, until_s: float, slo_s: float) -> None:
        self.from_s = from_s
        self.until_s = until_s
        self.slo_s = slo_s
        self.bin_s = slo_s / 4.0
        bins = int(until_s / self.bin_s) + 1
        self.offered = [0, 0, 0]
        """First attempts."""
        self.rejected = [0, 0, 0]
        """Attempts that were rejected, at once or after a wait."""
        self.good = [0, 0, 0]
        """First responses within the objective."""
        self.offered_by_bin = [0] * bins
        self.good_by_bin = [0] * bins
        """Both by the time of the request, in bins of a quarter of the objective, warm-up included. By the
        time of the response the batches of two runs would be out of phase, and that would look lost."""
        self.high_s: list[float] = []
        """Latencies of the high class, late responses included."""
        self.lost = 0
        self.kills = 0
        self.states: list[tuple[float | None, float | None]] = []
        """Factor and limit reported by the limiter, once a sample."""

    def record_sent(self, request: Request) -> None:
        """Count an attempt of a client."""
        if request.tries == 0:
            self.offered_by_bin[int(request.sent_s / self.bin_s)] += 1
            if request.sent_s >= self.from_s:
                self.offered[request.priority] += 1

    def record_rejected(self, request: Request, now: float) -> None:
        """Count a rejected attempt."""
        if now >= self.from_s:
            self.rejected[request.priority] += 1

    def record_answered(self, request: Request, now: float) -> None:
        """Count a response, if its client is still waiting for it."""
        latency_s = now - request.sent_s
        if now >= self.from_s and request.priority == 0:
            self.high_s.append(latency_s)
        first = request.first
        if first.done or latency_s > self.slo_s:
            return
        first.done = True
        self.good_by_bin[int(request.sent_s / self.bin_s)] += 1
        if now >= self.from_s:
            self.good[request.priority] += 1
