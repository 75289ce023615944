"""One run: clients, a door, a service, and what came of it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.loop.agenda import Agenda
from benchmarks.loop.books import Books
from benchmarks.loop.clients import Plan
from benchmarks.loop.doors.door import Door, Site
from benchmarks.loop.llm_plant import LlmPlant, LlmPlantSpec
from benchmarks.loop.plant import BatchPlant, Card, Plant
from benchmarks.loop.request import Request
from benchmarks.loop.scenarios import Scenario

SAMPLE_S = 1.0
"""Between two readings of the cards."""

BACKOFF_S = 0.25
"""First wait of a client before it repeats a refused request; it doubles each time."""

MakeDoor = Callable[[Site], Door]


class Run:
    """Clients, door and service of one scenario, on one agenda."""

    def __init__(self, scenario: Scenario, plan: Plan, make_door: MakeDoor) -> None:
        self.scenario = scenario
        self.plan = plan
        self.slo_s = scenario.slo_s
        self.agenda = Agenda()
        self.books = Books(scenario.warm_s, scenario.duration_s, scenario.slo_s)
        self.plant: Plant = _plant(scenario, self.agenda, self)
        self.door = make_door(self)
        for at_s, replica, speed in scenario.speeds:
            self.agenda.at(at_s, self.plant.speed, (replica, speed))
        self.agenda.at(SAMPLE_S, self._sample)

    def go(self) -> Books:
        """From beginning to end."""
        agenda, arrive = self.agenda, self._arrive
        for number, (at_s, priority, cost) in enumerate(
            zip(self.plan.at_s, self.plan.priority, self.plan.cost, strict=True)
        ):
            agenda.until(at_s)
            arrive(Request(number, at_s, priority, cost))
        agenda.until(self.scenario.duration_s)
        self.books.kills = self.plant.kills
        return self.books

    def enter(self, request: Request, replica: int | None = None) -> None:
        """The door lets a request in."""
        self.plant.enter(request, replica)

    def refuse(self, request: Request) -> None:
        """The door sends a request away; its client may try again after a while."""
        now = self.agenda.now
        self.books.turned_away(request, now)
        tries = request.tries
        if tries < self.scenario.retries and request.latest:
            wait_s = BACKOFF_S * 2.0**tries * self.plan.patience[request.number][tries]
            self.agenda.at(now + wait_s, self._repeat, request)

    def ended(self, request: Request, *, ok: bool) -> None:
        """The service is through with a request."""
        if ok:
            self.books.answered(request, self.agenda.now)
        else:
            self.books.lost += 1
        self.door.ended(request, ok=ok)

    def settled(self, replica: int) -> None:
        """The service has told of all that ended together."""
        self.door.settled(replica)

    def _arrive(self, request: Request) -> None:
        self.books.sent(request)
        if self.scenario.retries:
            self.agenda.at(request.sent_s + self.slo_s, self._overdue, request)
        self.door.arrive(request)

    def _overdue(self, request: Request) -> None:
        """A client that has had no word until its deadline repeats at once."""
        if request.tries < self.scenario.retries:
            self._repeat(request)

    def _repeat(self, request: Request) -> None:
        if request.latest and not request.first.done:
            request.latest = False
            self._arrive(request.again(self.agenda.now))

    def _sample(self, _what: object) -> None:
        now = self.agenda.now
        self.door.sample(self._shown(now))
        if now >= self.scenario.warm_s:
            self.books.states.append(self.door.state())
        self.agenda.at(now + SAMPLE_S, self._sample)

    def _shown(self, now: float) -> list[Card]:
        """What the cards show, other people's work on them included."""
        cards = self.plant.cards()
        for begun_s, ends_s, index, utilization_pct in self.scenario.taken:
            if begun_s <= now < ends_s:
                cards[index] = cards[index]._replace(
                    utilization_pct=max(utilization_pct, cards[index].utilization_pct)
                )
        return cards


def _plant(scenario: Scenario, agenda: Agenda, run: Run) -> Plant:
    if isinstance(scenario.plant, LlmPlantSpec):
        return LlmPlant(scenario.plant, agenda, run)
    return BatchPlant(scenario.plant, agenda, run)
