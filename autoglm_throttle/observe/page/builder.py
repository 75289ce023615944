"""The state of the live page, built once per step on the thread of the history and shared by all readers."""

from __future__ import annotations

import json
import os
import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from autoglm_throttle._runtime.wakeup import Wakeup, new_wakeup
from autoglm_throttle.observe.page.html import render
from autoglm_throttle.observe.page.plots import PLOTS, POINTS, Plot, PlotRings
from autoglm_throttle.observe.page.sections import SECTIONS, bands, configuration, sentence
from autoglm_throttle.observe.page.text import Section
from autoglm_throttle.observe.series import History
from autoglm_throttle.observe.timer import history_timer

if TYPE_CHECKING:
    from autoglm_throttle.throttle import Throttle

SCHEMA: Final = 1


@dataclass(frozen=True)
class PageState:
    """The page at one step."""

    step: int
    step_s: float
    wall_s: float
    sentence: str
    sections: list[Section]
    """All but the configuration."""
    configuration: Section
    plots: list[Plot]

    @cached_property
    def document(self) -> bytes:
        """The JSON document, whole."""
        return self._json([*self.sections, self.configuration], None)

    @cached_property
    def message(self) -> bytes:
        """The JSON document without the configuration, with the newest value of each series alone."""
        return self._json(self.sections, 1)

    @cached_property
    def html(self) -> bytes:
        """The page for a browser, with everything drawn."""
        sections = [*self.sections, self.configuration]
        return render(self.sentence, sections, self.plots, self.wall_s, self.step_s).encode()

    def _json(self, sections: list[Section], newest: int | None) -> bytes:
        head = {
            "schema": SCHEMA,
            "step": self.step,
            "step_s": self.step_s,
            "at": self.wall_s,
            "points": POINTS,
        }
        head |= {"process": os.getpid(), "sentence": self.sentence, "sections": sections}  # type: ignore[dict-item]
        plots = ",".join(plot.json(newest) for plot in self.plots)
        return f'{json.dumps(head, separators=(",", ":"))[:-1]},"plots":[{plots}]}}'.encode()


class PageBuilder:
    """Builds the state of the page at each step of a history; a consumer of its timer."""

    def __init__(self, throttle: Throttle) -> None:
        # Weak: the timer of the throttle holds its consumers, and must not keep the throttle alive.
        self._throttle = weakref.ref(throttle)
        self._rings = PlotRings(PLOTS)
        self._configuration = configuration(throttle.settings)
        self.state: PageState | None = None
        """The newest state; None before the first step."""
        self._waiting: set[Wakeup] = set()

    def __call__(self, history: History) -> None:
        """Build the state of the newest step, and wake the readers."""
        throttle = self._throttle()
        if throttle is None:
            return
        inputs = history_timer(throttle).inputs(throttle)
        self._rings.record(history)
        made = (make(inputs, history) for make in SECTIONS)
        self.state = PageState(
            step=self._rings.step,
            step_s=history.step_s,
            wall_s=history.wall_s,
            sentence=sentence(inputs, history),
            sections=[section for section in made if section is not None],
            configuration=self._configuration,
            plots=self._rings.plots({"gpu": bands(throttle.settings)}),
        )
        _ = self.state.message  # here, not on an event loop
        for wake in list(self._waiting):
            wake()

    async def next_state(self, seen: str, seconds: float) -> PageState | None:
        """Return the newest state once its step is not the one ``seen``; None: there was none in time."""
        wakeup = new_wakeup()
        self._waiting.add(wakeup)  # before the look: a step in between wakes it
        try:
            if self.state is None or str(self.state.step) == seen:
                await wakeup.sleep(seconds)
        finally:
            self._waiting.discard(wakeup)
        return None if self.state is None or str(self.state.step) == seen else self.state
