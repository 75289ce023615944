"""Open-loop sender: an intended start never depends on a response."""

from __future__ import annotations

from autoglm_throttle.traffic.generator.options import Observer, Options
from autoglm_throttle.traffic.generator.sending import Sending
from autoglm_throttle.traffic.generator.target import Target
from autoglm_throttle.traffic.generator.wire import encoder
from autoglm_throttle.traffic.load import Load
from autoglm_throttle.traffic.result import Effort, Result
from autoglm_throttle.traffic.sheet import Sheet


class Generator(Sending):
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
        load: Load,
        target: Target,
        options: Options | None = None,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(Sheet(len(load.plan)), load.plan.offsets, target, options or Options(), observer)
        self._load = load
        self._encode = encoder(load, target)

    def _send_due(self, elapsed_s: float) -> bool:
        offsets = self._offsets
        count = len(offsets)
        while self._next < count and offsets[self._next] <= elapsed_s:
            index = self._next
            self._next += 1
            self._launch(index)
        return self._next < count

    def _leave_out(self) -> None:
        for index in range(self._next, len(self._offsets)):
            self.sheet.leave_out(index)
        self._next = len(self._offsets)

    def _ended(self, index: int, now: float) -> None:
        """Do nothing: the loop is open."""

    def _result(self, effort: Effort) -> Result:
        return Result(self._load, self.sheet, effort, aborted=self._stopped)
