"""Maintenance of a shared store: results recorded, changes logged, probes sent."""

from __future__ import annotations

import math
import weakref
from typing import Final

from autoglm_throttle import journal
from autoglm_throttle.limiting.shared.background import begin, call_later, loop_runs
from autoglm_throttle.limiting.shared.outage import HealthState
from autoglm_throttle.limiting.shared.store import StoreErrorKind
from autoglm_throttle.limiting.shared.windows import SharedUserLimits, StoreView
from autoglm_throttle.snapshot import Rows

LOOK_AT_LEAST_S: Final = 0.05
LOOK_AT_MOST_S: Final = 5.0
"""Seconds between two checks whether a probe is due: a hung probe is abandoned after some seconds."""


class Upkeep:
    """Monitors the shared store of a throttle.

    Args:
        shared: the user limits in the store.
        counters: the lock and the clock of the throttle.
    """

    def __init__(self, shared: SharedUserLimits, rows: Rows) -> None:
        self._shared = shared
        self._rows = rows
        self._looks_until_s = -math.inf
        """When the pending timer will have fired: the store is probed even without requests."""
        shared.store.listen(self._heard)

    def introduce(self) -> None:
        """Log the properties of the store, once."""
        if self._shared.store.approximate:
            journal.approximate(self._shared.store.kind).write()

    def greet(self) -> None:
        """Connect before the first decision; without a running event loop, the first decision connects."""
        begin(self._shared.store.probe, self._heard)

    def misfit(self) -> str:
        """Return why the store cannot be used from the running event loop; empty if it can."""
        return (
            "" if loop_runs() else "REDIS_URL and USER_STORAGE need asyncio; this event loop is another one"
        )

    def tend(self) -> None:
        """Write pending log events, and start a probe if one is due; without the lock."""
        shared = self._shared
        probes = shared.probe_due and loop_runs()
        waits = (
            shared.store_health.state is not HealthState.REMOTE and self._rows.clock() >= self._looks_until_s
        )
        if not (probes or shared.changes or waits):
            return
        with self._rows.lock:
            if probes:  # otherwise it stays due until a caller has an event loop
                probes, shared.probe_due = shared.probe_due, False
            changes, shared.changes = shared.changes, []
            view = shared.view() if changes else None
        if view is not None:
            for change in changes:
                journal.store_changed(view, change, shared.store.last_error).write()
        if waits:
            self._look_later()
        if probes:
            begin(shared.store.probe, self._probed, retry_in_thread=True)

    def view(self) -> StoreView:
        """Return the state of the store; under the lock."""
        return self._shared.view()

    def reset_after_fork(self, rows: Rows) -> None:
        """Reset in a forked process, with the new lock."""
        self._rows = rows
        self._looks_until_s = -math.inf
        self._shared.reset_after_fork(rows.clock())

    def _look_later(self) -> None:
        """Set the timer for the next probe, in the running loop. The timer holds no strong reference."""
        myself = weakref.ref(self)

        def look() -> None:
            upkeep = myself()
            if upkeep is not None:
                upkeep._look()  # noqa: SLF001 - a method of this class, reached through a weak reference

        now = self._rows.clock()
        wait = min(max(self._shared.store_health.next_probe_s - now, LOOK_AT_LEAST_S), LOOK_AT_MOST_S)
        if call_later(wait, look):
            self._looks_until_s = now + wait + LOOK_AT_MOST_S  # the loop of the timer may end before it fires

    def _look(self) -> None:
        self._looks_until_s = -math.inf
        with self._rows.lock:
            self._shared.poll(self._rows.clock())
        self.tend()

    def _heard(self, trouble: StoreErrorKind | None) -> None:
        """Record the result of a round trip, in its event loop."""
        with self._rows.lock:
            self._shared.on_result(trouble, self._rows.clock())
        self.tend()

    def _probed(self, trouble: StoreErrorKind | None) -> None:
        with self._rows.lock:
            self._shared.on_probe_result(trouble, self._rows.clock())
        self.tend()
