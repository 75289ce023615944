"""What is counted in one run."""

from __future__ import annotations

from benchmarks.loop.request import Request


class Books:
    """Counts of one run, by class where it says so.

    Args:
        from_s: when counting begins; what happens before is warming up.
        until_s: end of the run.
        slo_s: seconds within which an answer is worth something.
    """

    def __init__(self, from_s: float, until_s: float, slo_s: float) -> None:
        self.from_s = from_s
        self.until_s = until_s
        self.slo_s = slo_s
        self.bin_s = slo_s / 4.0
        bins = int(until_s / self.bin_s) + 1
        self.offered = [0, 0, 0]
        """First attempts."""
        self.refused = [0, 0, 0]
        """Attempts that were refused, at once or after a wait."""
        self.good = [0, 0, 0]
        """First answers within the objective."""
        self.offered_by_bin = [0] * bins
        self.good_by_bin = [0] * bins
        """Both by the time of the request, in bins of a quarter of the objective, warming up included. By the
        time of the answer the batches of two runs would be out of step, and that would look like a loss."""
        self.high_s: list[float] = []
        """Latencies of the high class, late answers included."""
        self.lost = 0
        self.kills = 0
        self.states: list[tuple[float | None, float | None]] = []
        """Factor and limit that the door reported, once a sample."""

    def sent(self, request: Request) -> None:
        """A client asks."""
        if request.tries == 0:
            self.offered_by_bin[int(request.sent_s / self.bin_s)] += 1
            if request.sent_s >= self.from_s:
                self.offered[request.priority] += 1

    def turned_away(self, request: Request, now: float) -> None:
        """A client was refused."""
        if now >= self.from_s:
            self.refused[request.priority] += 1

    def answered(self, request: Request, now: float) -> None:
        """A client got its answer, if it was still there."""
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
