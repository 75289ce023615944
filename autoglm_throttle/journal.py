"""Which changes deserve a log line, and how often a refusal does."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle.limiting.shared.outage import Change, State
from autoglm_throttle.limiting.shared.store import WORST_WINDOW
from autoglm_throttle.limiting.shared.windows import StoreView
from autoglm_throttle.model import (
    Decision,
    Demand,
    DeviceKey,
    Finding,
    GpuSample,
    GpuView,
    OnError,
    Reason,
    Regime,
    Signal,
    Telemetry,
    Verdict,
    Why,
)
from autoglm_throttle.settings import Problem

LOGGER = logging.getLogger("autoglm_throttle")
"""Without a handler of the application's own, Python shows its warnings on standard error:
a limiter that fails silently is worse than one that speaks."""


_LIMITS: Final = frozenset({"policy", "rate_high_rps", "rate_mid_rps", "rate_low_rps", "user_limit"})
"""What the first line says of every service."""

MOST_CHARACTERS: Final = 60
"""Of one setting in that line; the whole stands among its keys."""

FAULTS: Final[Mapping[Finding, int]] = {
    Finding.STALLED: logging.ERROR,
    Finding.DEGRADED: logging.WARNING,
    Finding.THROTTLED: logging.WARNING,
    Finding.STARVED: logging.WARNING,
}
"""Verdicts that somebody should hear of, and how loudly. A lost card has a line of its own."""

MOST_CARDS: Final = 16
"""Cards that get a line each for one change of the view; of more there is one line with their number. A large
host has 16, and an exporter that names its cards anew at every reading would else fill the disk."""

MOST_SOURCES: Final = 3
"""Named in a line; a view may have many."""

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


def changes(
    before: Regime, after: Regime, view: GpuView | None = None, now: float | None = None
) -> Iterator[Line]:
    """The lines that a change of Regime deserves: a tier, the door, telemetry, its signal.

    Args:
        before: the Regime until now.
        after: the one from now on.
        view: what was last seen of the devices; None: nothing yet.
        now: monotonic seconds; None: the age of what was seen is not told.
    """
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
    if after.signal is not before.signal and before.telemetry is not Telemetry.STARTING:
        yield _changed_over(before, after, view)
    if after.telemetry is not before.telemetry:
        yield _telemetry(before, after, view, now)


def _changed_over(before: Regime, after: Regime, view: GpuView | None) -> Line:
    provider, _ = _heard(after.signal, view, None)
    whose = f" ({provider})" if provider else ""
    return Line(
        "signal_changed",
        logging.WARNING if after.signal is Signal.UTILIZATION else logging.INFO,
        f"the load is told by the {after.signal} now{whose}, no longer by the {before.signal}",
        {"signal": after.signal.value, "signal_before": before.signal.value, "provider": provider or None},
    )


def _telemetry(before: Regime, after: Regime, view: GpuView | None, now: float | None) -> Line:
    nothing = after.why is Why.NO_DEVICE
    worse = nothing or after.telemetry in {Telemetry.STALE, Telemetry.BLIND}
    provider, age_s = _heard(after.signal, view, now)
    said = [provider] if provider else []
    said += [] if age_s is None else [f"{age_s:.1f} s old"]
    if _none_left(after.signal, view):
        said, age_s = [*said[:1], "every GPU is lost, so none tells a load"], None
    whose = f" ({', '.join(said)})" if said else ""
    return Line(
        "telemetry_changed",
        logging.WARNING if worse else logging.INFO,
        "no GPU to look at: the rates stay nominal"
        if nothing
        else f"GPU telemetry is {after.telemetry}{whose}",
        {
            "state": after.telemetry.value,
            "state_before": before.telemetry.value,
            "factor": after.factor,
            "provider": provider or None,
            "age_s": age_s,
        },
    )


def _none_left(signal: Signal, view: GpuView | None) -> bool:
    """Whether the cards should tell the load and all are lost: what they tell is then young, and no load."""
    if view is None or (signal is Signal.PRESSURE and view.engines_at_s is not None):
        return False
    cards = [row for row in view.devices if row.kind != "engine"]
    return bool(cards) and all(row.health == "lost" for row in cards)


def _heard(signal: Signal, view: GpuView | None, now: float | None) -> tuple[str, float | None]:
    """Who tells the signal in force, and how old its newest measurement is."""
    if view is None or not view.devices:
        return "", None
    engines = signal is Signal.PRESSURE and view.engines_at_s is not None
    at_s = view.engines_at_s if engines else view.taken_at_s
    names = sorted({row.source for row in view.devices if (row.kind == "engine") is engines})
    more = f" and {len(names) - MOST_SOURCES} more" if len(names) > MOST_SOURCES else ""
    age_s = None if now is None or at_s is None else max(0.0, now - at_s)
    return ", ".join(names[:MOST_SOURCES]) + more, age_s


def view_changes(before: GpuView | None, after: GpuView) -> Iterator[Line]:
    """The lines that a new view of the devices deserves."""
    yield from device_changes(() if before is None else before.devices, after.devices)
    yield from verdict_changes(before, after)


def device_changes(before: Sequence[GpuSample], after: Sequence[GpuSample]) -> Iterator[Line]:
    """The lines for cards that were lost, and for those that came back."""
    were, are = _lost(before), _lost(after)
    known = sum(row.kind != "engine" for row in after)
    usable = known - len(are)
    for devices, word, level in ((are - were, "lost", logging.ERROR), (were - are, "back", logging.INFO)):
        if len(devices) > MOST_CARDS:
            text = f"{len(devices)} GPUs are {word}: {usable} of {known} usable"
            keys: dict[str, object] = {"cards": len(devices), "usable": usable, "known": known}
            yield Line(f"gpu_{word}", level, text, keys)
            continue
        for key in sorted(devices):
            text = f"{_called(key)} is {word}: {usable} of {known} usable"
            yield Line(f"gpu_{word}", level, text, {**_which(key), "usable": usable, "known": known})


def _lost(samples: Sequence[GpuSample]) -> set[DeviceKey]:
    return {(sample.host, sample.device) for sample in samples if sample.health == "lost"}


def verdict_changes(before: GpuView | None, after: GpuView) -> Iterator[Line]:
    """The lines for cards that were found to be at fault, and for those that are well again.

    Whether a card idles or works is no news, and a lost one has had its line.
    """
    were = {} if before is None else before.verdicts
    lines = [
        line for key in sorted(after.verdicts) if (line := _change(key, after.verdicts[key], were.get(key)))
    ]
    if len(lines) <= MOST_CARDS:
        yield from lines
        return
    level = max(line.level for line in lines)
    found = Counter(str(line.keys["verdict"]) for line in lines)
    told = ", ".join(f"{count} {finding}" for finding, count in sorted(found.items()))
    yield Line("gpu_verdict", level, f"new verdicts on {len(lines)} GPUs: {told}", {"cards": len(lines)})


def _change(key: DeviceKey, verdict: Verdict, was: Verdict | None) -> Line | None:
    if was is not None and was.finding is verdict.finding:
        return None
    if verdict.finding in FAULTS:
        return _fault(key, verdict, was)
    over = was is not None and was.finding in FAULTS and verdict.finding is not Finding.LOST
    return _over(key, verdict, was) if over and was is not None else None


def _fault(key: DeviceKey, verdict: Verdict, was: Verdict | None) -> Line:
    rests_on = ", ".join(f"{name} {value:.3g}" for name, value in verdict.evidence.items())
    text = f"{_called(key)} is {verdict.finding}, {verdict.confidence:.0%} sure"
    keys = {
        **_which(key),
        "verdict": verdict.finding.value,
        "verdict_before": None if was is None else was.finding.value,
        "confidence": verdict.confidence,
        "evidence": dict(verdict.evidence),
    }
    level = FAULTS[verdict.finding]
    return Line("gpu_verdict", level, f"{text}: {rests_on}" if rests_on else text, keys)


def _over(key: DeviceKey, verdict: Verdict, was: Verdict) -> Line:
    lasted_s = max(0.0, verdict.since_s - was.since_s)
    text = f"{_called(key)} is {verdict.finding}, no longer {was.finding} after {lasted_s:.0f} s"
    keys = {
        **_which(key),
        "verdict": verdict.finding.value,
        "verdict_before": was.finding.value,
        "lasted_s": lasted_s,
    }
    return Line("gpu_verdict", logging.INFO, text, keys)


def _which(key: DeviceKey) -> dict[str, object]:
    return {"device": _plain(key[1]), "host": _plain(key[0])}


def _called(key: DeviceKey) -> str:
    host, device = map(_plain, key)
    return f"{device} on {host}" if host else device


def _plain(text: str) -> str:
    """Names come from exporters: no character of theirs may begin a line of its own."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


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
