"""Which changes deserve a log line, and how often a refusal does."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.limiting.shared.outage import Change, State
from autoglm_throttle.limiting.shared.store import WORST_WINDOW
from autoglm_throttle.limiting.shared.windows import StoreView
from autoglm_throttle.model import Decision, Demand, GpuSample, OnError, Reason, Regime, Telemetry, Why
from autoglm_throttle.settings import Problem

LOGGER = logging.getLogger("autoglm_throttle")
"""Without a handler of the application's own, Python shows its warnings on standard error:
a limiter that fails silently is worse than one that speaks."""


_LIMITS: Final = frozenset({"policy", "rate_high_rps", "rate_mid_rps", "rate_low_rps", "user_limit"})
"""What the first line says of every service."""

MOST_CHARACTERS: Final = 60
"""Of one setting in that line; the whole stands among its keys."""

_MEANWHILE = {
    OnError.LOCAL: "each process goes by {share} of the user limits until it answers",
    OnError.ALLOW: "no user limit holds until it answers",
    OnError.DENY: "all whom a user limit applies to are refused until it answers",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One log line: an event name, a level, a sentence and flat keys."""

    event: str
    level: int
    text: str
    keys: dict[str, object]

    def write(self) -> None:
        """Hand the line to the logger ``autoglm_throttle``; one that raises loses only the line."""
        with contextlib.suppress(Exception):
            LOGGER.log(self.level, self.text, extra={"event": self.event, **self.keys})


def changes(before: Regime, after: Regime) -> Iterator[Line]:
    """The lines that a change of Regime deserves: a tier entered or left, the door shut, telemetry."""
    shut, was_shut = not after.factor, not before.factor
    if after.tier != before.tier or shut is not was_shut:
        falls = after.factor < before.factor
        yield Line(
            "tier_changed",
            logging.WARNING if falls else logging.INFO,
            f"rates at {after.factor:.0%} of nominal ({after.why})",
            {
                "factor": after.factor,
                "factor_before": before.factor,
                "why": after.why.value,
                "gpu_utilization_ratio": after.load,
            },
        )
    if after.telemetry is not before.telemetry:
        nothing = after.why is Why.NO_DEVICE
        worse = nothing or after.telemetry in {Telemetry.STALE, Telemetry.BLIND}
        yield Line(
            "telemetry_changed",
            logging.WARNING if worse else logging.INFO,
            "no GPU to look at: the rates stay nominal" if nothing else f"GPU telemetry is {after.telemetry}",
            {"state": after.telemetry.value, "state_before": before.telemetry.value, "factor": after.factor},
        )


def device_changes(before: Sequence[GpuSample], after: Sequence[GpuSample]) -> Iterator[Line]:
    """The lines for devices that were lost, and for those that came back."""
    were, are = _lost(before), _lost(after)
    usable = len(after) - len(are)
    for devices, word, level in ((are - were, "lost", logging.ERROR), (were - are, "back", logging.INFO)):
        for device in sorted(devices):
            text = f"{device} is {word}: {usable} of {len(after)} usable"
            yield Line(f"gpu_{word}", level, text, {"device": device, "usable": usable, "known": len(after)})


def _lost(samples: Sequence[GpuSample]) -> set[str]:
    return {sample.device for sample in samples if sample.health == "lost"}


def configured(values: Mapping[str, str], chosen: Collection[str]) -> Line:
    """The line that says once what is in force.

    Args:
        values: all settings as they would be written; what is secret must be masked already.
        chosen: the names of those that are no defaults. They stand in the sentence, and the limits do.
    """
    told = (f"{name}={_short(text)}" for name, text in values.items() if name in _LIMITS or name in chosen)
    text = f"the limits in force: {', '.join(told)}"
    return Line("config", logging.INFO, text, {"settings": dict(values)})


def _short(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 2]}.."


def more_refused(reason: Reason, name: str, count: int) -> Line:
    """The line for refusals that were counted and not followed by another."""
    keys: dict[str, object] = {"decision": name, "reason": reason.value, "count": count}
    return Line("refused", logging.INFO, f"{count} {name} ({reason})", keys)


def refused(demand: Demand, decision: Decision, name: str, count: int, client: str) -> Line:
    """The line for a sampled refusal; ``client`` is the caller's keyed hash."""
    return Line(
        "refused",
        logging.INFO,
        f"{count} {name} ({decision.detail})",
        {
            "priority": demand.priority.label,
            "decision": name,
            "reason": decision.reason.value,
            "detail": decision.detail,
            "client_hash": client,
            "retry_after_s": decision.retry_after_s,
            "count": count,
        },
    )


def users_full(most: int) -> Line:
    """The line that says once that newcomers share their neighbourhood's limit."""
    text = f"all {most} users remembered are at their limit; newcomers share one; raise MAX_USERS"
    return Line("users_full", logging.WARNING, text, {"max_users": most})


def store_changed(view: StoreView, change: Change, error: str) -> Line:
    """The line for a shared store of user limits that was lost, or has come back."""
    if change.state is State.REMOTE:
        text = f"{view.kind} answers again after {change.lasted_s:.1f} s; user limits are shared again"
        return Line("store_back", logging.INFO, text, {"store": view.kind, "down_s": change.lasted_s})
    trouble = str(change.trouble)
    because = f" ({error})" if error else ""
    meanwhile = _MEANWHILE[view.on_error].format(share=f"1/{view.processes}")
    keys: dict[str, object] = {"store": view.kind, "reason": trouble, "on_error": view.on_error.value}
    text = f"{view.kind} cannot be asked: {trouble}{because}; {meanwhile}"
    return Line("store_lost", logging.WARNING, text, keys)


def approximate(kind: str) -> Line:
    """The line that says once that a store does not count exactly."""
    worst = f"up to {WORST_WINDOW:g} times a limit may pass in one window"
    text = f"{kind} counts user limits approximately: {worst}"
    return Line("config", logging.WARNING, text, {"setting": "USER_STORAGE"})


def configured_oddly(problem: Problem) -> Line:
    """The line for a setting that is allowed and that nobody can have meant."""
    return Line("config", logging.WARNING, str(problem), {"setting": problem.variable})


class RefusalSampler:
    """The first refusal for each reason is a line; those after it are counted into one line per interval.

    Args:
        every_s: least time between two lines for one reason.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._seen: dict[Reason, list[float]] = {}

    def note(self, reason: Reason, now: float) -> int:
        """Count a refusal; more than 0 means: write a line for so many refusals."""
        seen = self._seen.get(reason)
        if seen is None:
            self._seen[reason] = [now + self._every_s, 0]
            return 1
        seen[1] += 1
        if now < seen[0]:
            return 0
        count = int(seen[1])
        seen[0], seen[1] = now + self._every_s, 0
        return count

    def overdue(self, now: float) -> list[tuple[Reason, int]]:
        """What was counted and should have been told by now, as after the end of a flood."""
        found = []
        for reason, seen in self._seen.items():
            if seen[1] and now >= seen[0]:
                found.append((reason, int(seen[1])))
                seen[0], seen[1] = now + self._every_s, 0
        return found
