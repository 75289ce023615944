"""Open-loop sender: an intended start never depends on a response."""

from __future__ import annotations

from autoglm_throttle.traffic.generator.encoding import encoder
from autoglm_throttle.traffic.generator.options import ClientOptions, Observer
from autoglm_throttle.traffic.generator.sender import Sender
from autoglm_throttle.traffic.generator.target import TargetUrl
from autoglm_throttle.traffic.request_log import RequestLog
from autoglm_throttle.traffic.request_source import RequestSource
from autoglm_throttle.traffic.result import Result, RunCost


class OpenLoopSender(Sender):
    """One run of one load; use it once.

    Args:
        load: requests and plan.
        target: destination of the requests.
        options: client options.
        observer: called with each result as it occurs.

    Raises:
        TrafficError: httptools is missing, or too few files may be opened.
    """

    def __init__(
        self,
        load: RequestSource,
        target: TargetUrl,
        options: ClientOptions | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(
            RequestLog(len(load.plan)), load.plan.offsets, target, options or ClientOptions(), observer
        )
        self._load = load
        self._encode = encoder(load, target)

    def send_due(self, elapsed_s: float) -> bool:
        """Launch the due requests; return whether more follow."""
        offsets, requests = self._offsets, self._requests
        count = len(offsets)
        while requests.next < count and offsets[requests.next] <= elapsed_s:
            index = requests.next
            requests.next += 1
            self._launch(index)
        return requests.next < count

    def _skip_unsent(self) -> None:
        for index in range(self._requests.next, len(self._offsets)):
            self.request_log.skip(index)
        self._requests.next = len(self._offsets)

    def _ended(self, index: int, now: float) -> None:
        """Do nothing: the loop is open."""

    def _result(self, run_cost: RunCost) -> Result:
        return Result(self._load, self.request_log, run_cost, aborted=self._clock.is_stopped)
