"""Log events: their texts and keys, their queue behind the lock, and the limits of repeated ones."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autoglm_throttle import types as t
from autoglm_throttle.settings import Problem

# Without a handler of the application, Python prints its warnings to standard error: a limiter must not fail
# silently.
LOGGER = logging.getLogger("autoglm_throttle")

# Seconds between two lines of one kind: under load a fault repeats with each call.
LOG_INTERVAL_S: Final = 30.0

MOST_SOURCES: Final = 3  # named in an event; a view may have many
MOST_CHARACTERS: Final = 60  # of one setting in the text of the first event; its keys have the full value
_LIMITS: Final = frozenset({"policy", "rate_high_rps", "rate_mid_rps", "rate_low_rps", "user_limit"})

# Devices with an event each for one change of the view; above it one event has their number. A large host has
# 16. An exporter that renames its devices at every reading would otherwise fill the disk.
MAX_DEVICE_EVENTS: Final = 16

_WARNED: Final = (t.GpuCondition.DEGRADED, t.GpuCondition.THROTTLED, t.GpuCondition.STARVED)
# Verdicts that are logged, with their level. A lost GPU has an event of its own.
FAULTS: Final = {t.GpuCondition.STALLED: logging.ERROR} | dict.fromkeys(_WARNED, logging.WARNING)


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One log event: an event name, a level, a sentence and flat keys."""

    event: str
    level: int
    text: str
    keys: dict[str, object]

    def write(self) -> None:
        """Pass the event to the logger ``autoglm_throttle``; a handler's exception loses only this event."""
        # A broken log handler must not fail a request.
        with contextlib.suppress(Exception):
            LOGGER.log(self.level, self.text, extra={"event": self.event, **self.keys})


class RateLimitedLogger:
    """Logs the first fault of a kind at once, then one line in each interval, with the number left out."""

    __slots__ = ("_clock", "_last", "_prefix")

    def __init__(self, prefix: str, clock: Callable[[], float]) -> None:
        self._prefix = prefix
        self._clock = clock
        self._last: dict[str, tuple[float, int]] = {}  # kind -> time of its last line, and faults since then

    def warn(
        self, kind: str, text: str, *, error: BaseException | None = None, level: int = logging.WARNING
    ) -> None:
        """Log a fault, or count it if one of its ``kind``, fixed in code, was logged in the last interval."""
        now = self._clock()
        last_s, suppressed = self._last.get(kind, (now - LOG_INTERVAL_S, 0))
        if now - last_s < LOG_INTERVAL_S:
            self._last[kind] = (last_s, suppressed + 1)
            return
        self._last[kind] = (now, 0)
        more = f" ({suppressed} more since the last line)" if suppressed else ""
        LOGGER.log(level, "%s: %s%s", self._prefix, plain(text), more, exc_info=error)


class EventQueue:
    """Collects log events under a lock and writes them after it: a log handler may be slow.

    The first rejection for each reason is an event; later ones are counted into one event in ``every_s``.
    The lock is held in all methods but `write`; ``hash_caller`` returns the keyed hash of a caller.
    """

    __slots__ = (
        *("_every_s", "_hash_caller", "_is_full_logged", "_lock", "_max_users", "rejections", "waiting"),
    )

    def __init__(
        self,
        lock: contextlib.AbstractContextManager[None],
        every_s: float,
        hash_caller: Callable[[str], str],
        max_users: int,
    ) -> None:
        self._lock = lock
        self._every_s = every_s
        self._hash_caller = hash_caller
        self._max_users = max_users
        self._is_full_logged = False
        # By reason: time of the next event, rejections since the last.
        self.rejections: dict[t.Reason, list[float]] = {reason: [-math.inf, 0] for reason in t.Reason}
        self.waiting: list[LogEvent] = []

    def record_rejection(self, demand: t.Demand, decision: t.Decision, now: float) -> bool:
        """Count a rejection, and queue its event if it is one of the sample; return whether it is."""
        entry = self.rejections[decision.reason]
        entry[1] += 1
        if now < entry[0]:
            return False
        keys: dict[str, object] = {"priority": demand.priority.label, "detail": decision.detail}
        keys |= {"client_hash": self._hash_caller(demand.user), "retry_after_s": decision.retry_after_s}
        self.waiting.append(_rejections(decision.reason, entry[1], decision.detail, **keys))
        entry[:] = now + self._every_s, 0
        return True

    def record_full_user_table(self) -> None:
        """Queue the event, once, that the user table is full: new users share their network's limit."""
        if not self._is_full_logged:
            self._is_full_logged = True
            most = self._max_users
            text = f"all {most} tracked users are at their limit; new users share one limit; raise MAX_USERS"
            self.waiting.append(_event("user_table_full", text, warns=True, max_users=most))

    def summarize(self, now: float) -> None:
        """Queue the events of rejections that were counted and not followed by a further one."""
        for reason, entry in self.rejections.items():
            if entry[1] and now >= entry[0]:
                self.waiting.append(_rejections(reason, entry[1], reason))
                entry[:] = now + self._every_s, 0

    def write(self) -> None:
        """Write the queued events, without the lock."""
        while self.waiting:
            with self._lock:
                events, self.waiting = self.waiting, []
            for event in events:
                event.write()


def plain(text: str) -> str:
    """Replace unprintable characters: a name from an exporter must not begin a log line of its own."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _event(name: str, text: str, *, warns: bool, **keys: object) -> LogEvent:
    return LogEvent(name, logging.WARNING if warns else logging.INFO, text, keys)


def _rejections(reason: t.Reason, number: float, cause: str, **keys: object) -> LogEvent:
    name, count = t.decision_label(reason), int(number)
    keys |= {"decision": name, "reason": reason.value, "count": count}
    return _event("request_rejected", f"{count} {name} ({cause})", warns=False, **keys)


def configured(values: Mapping[str, str], chosen: Collection[str]) -> LogEvent:
    """Build the event, logged once, of the configuration in force; the text has only ``chosen`` settings."""
    shown = {name: text for name, text in values.items() if name in _LIMITS or name in chosen}
    parts = (
        f"{name}={text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 2] + '..'}"
        for name, text in shown.items()
    )
    return _event("config", f"the limits in force: {', '.join(parts)}", warns=False, settings=dict(values))


def configuration_advice(problem: Problem) -> LogEvent:
    """Build the event of an allowed but probably unintended setting."""
    return _event("config", str(problem), warns=True, setting=problem.variable)


def objective_learned(slo_s: float, slo_before_s: float) -> LogEvent:
    """Build the event, logged once, that the learned objective is far from the one at the start."""
    text = (
        f"SLO_S is not set: the objective is {slo_s:.1f} s now, learned from responses under light load, "
        f"no longer {slo_before_s:g} s; set SLO_S to the time that your callers accept"
    )
    return _event("objective_learned", text, warns=True, slo_s=slo_s, slo_before_s=slo_before_s)


def breaker_changed(change: t.BreakerTransition) -> LogEvent:
    """Build the event of a breaker's state change."""
    after = f", next probe in {change.retry_after_s:.1f} s" if change.retry_after_s else ""
    guard = plain(change.name)
    text = f"{guard} is {change.after} ({change.cause}), no longer {change.before}{after}"
    keys: dict[str, object] = {"state": change.after.value, "state_before": change.before.value}
    keys |= {"breaker": guard, "cause": change.cause.value, "retry_after_s": change.retry_after_s}
    return _event("breaker_changed", text, warns=change.after is not t.BreakerState.CLOSED, **keys)


def degradation_changed(
    before: t.DegradationLevel, after: t.DegradationLevel, load: float | None
) -> LogEvent:
    """Build the event of a changed degradation level."""
    load_text = "unknown" if load is None else f"{load:.0%}"
    text = f"degradation is {after.label}, no longer {before.label}: the load is {load_text}"
    keys: dict[str, object] = {"level": after.label, "level_before": before.label, "load": load}
    return _event("degradation_changed", text, warns=after > before, **keys)


def guard_table_full(most: int) -> LogEvent:
    """Build the event, logged once, that the guard table is full."""
    text = f"{most} guards are in use; calls under further names are not guarded; raise breaker_max_names"
    return _event("guard_table_full", text, warns=True, breaker_max_names=most)


def control_events(
    before: t.ControlState,
    after: t.ControlState,
    view: t.GpuView | None = None,
    now: float | None = None,
    *,
    expects_gpu: bool = True,
) -> Iterator[LogEvent]:
    """Yield the log events of a changed control state: tier, stop of admission, telemetry, signal.

    ``expects_gpu``: whether a source is configured, so that missing telemetry is worth a warning.
    """
    if after.tier != before.tier or (not after.factor) is not (not before.factor):
        keys: dict[str, object] = {"factor": after.factor, "factor_before": before.factor}
        keys |= {"cause": after.cause.value, "gpu_utilization_ratio": after.load}
        text = f"rates at {after.factor:.0%} of nominal ({after.cause})"
        yield _event("tier_changed", text, warns=after.factor < before.factor, **keys)
    if after.signal is not before.signal and before.telemetry is not t.TelemetryState.STARTING:
        provider = _signal_source(after.signal, view, None)[0] or None
        origin = f" ({provider})" if provider else ""
        keys = {"signal": after.signal.value, "signal_before": before.signal.value, "provider": provider}
        text = f"the load signal is {after.signal} now{origin}, no longer {before.signal}"
        yield _event("signal_changed", text, warns=after.signal is t.Signal.UTILIZATION, **keys)
    if after.telemetry is not before.telemetry:
        yield _telemetry_event(before, after, view, now, expects_gpu=expects_gpu)


def _telemetry_event(
    before: t.ControlState,
    after: t.ControlState,
    view: t.GpuView | None,
    now: float | None,
    *,
    expects_gpu: bool,
) -> LogEvent:
    nothing = after.cause is t.ControlCause.NO_DEVICE
    provider, age_s = _signal_source(after.signal, view, now)
    parts = [provider] if provider else []
    parts += [] if age_s is None else [f"{age_s:.1f} s old"]
    if _all_devices_lost(after.signal, view):
        parts, age_s = [*parts[:1], "every GPU is lost, so the load is unknown"], None
    origin = f" ({', '.join(parts)})" if parts else ""
    text = f"GPU telemetry is {after.telemetry}{origin}"
    if nothing:
        text = "no GPU telemetry: the rates stay nominal"
    keys: dict[str, object] = {"state": after.telemetry.value, "state_before": before.telemetry.value}
    keys |= {"factor": after.factor, "provider": provider or None, "age_s": age_s}
    warns = (nothing and expects_gpu) or after.telemetry in {t.TelemetryState.STALE, t.TelemetryState.BLIND}
    return _event("telemetry_changed", text, warns=warns, **keys)


def _all_devices_lost(signal: t.Signal, view: t.GpuView | None) -> bool:
    # Whether the devices are the signal's source and all are lost: their samples carry no load.
    if view is None or (signal is t.Signal.PRESSURE and view.engines_at_s is not None):
        return False
    devices = [row for row in view.devices if row.kind != "engine"]
    return bool(devices) and all(row.health == "lost" for row in devices)


def _signal_source(signal: t.Signal, view: t.GpuView | None, now: float | None) -> tuple[str, float | None]:
    """Return the sources of the signal in force, and the age of its newest measurement."""
    if view is None or not view.devices:
        return "", None
    engines = signal is t.Signal.PRESSURE and view.engines_at_s is not None
    at_s = view.engines_at_s if engines else view.taken_at_s
    names = sorted({row.source for row in view.devices if (row.kind == "engine") is engines})
    more = f" and {len(names) - MOST_SOURCES} more" if len(names) > MOST_SOURCES else ""
    age_s = None if now is None or at_s is None else max(0.0, now - at_s)
    return ", ".join(names[:MOST_SOURCES]) + more, age_s


def device_events(before: Sequence[t.GpuSample], after: Sequence[t.GpuSample]) -> Iterator[LogEvent]:
    """Yield the log events of lost and recovered devices."""
    were, are = ({(row.host, row.device) for row in rows if row.health == "lost"} for rows in (before, after))
    known = sum(row.kind != "engine" for row in after)
    usable = known - len(are)
    for keys, word, level in ((are - were, "lost", logging.ERROR), (were - are, "recovered", logging.INFO)):
        devices = [(f"{_device_name(key)} is", _device_keys(key)) for key in sorted(keys)]
        if len(devices) > MAX_DEVICE_EVENTS:
            devices = [(f"{len(keys)} GPUs are", {"devices": len(keys)})]
        for name, of_device in devices:
            text = f"{name} {word}: {usable} of {known} usable"
            yield LogEvent(f"gpu_{word}", level, text, {**of_device, "usable": usable, "known": known})


def verdict_events(before: t.GpuView | None, after: t.GpuView) -> Iterator[LogEvent]:
    """Yield the log events of faulty devices, and of recovered ones; a lost device has its own event."""
    were = {} if before is None else before.verdicts
    possible = (_verdict_event(key, after.verdicts[key], were.get(key)) for key in sorted(after.verdicts))
    events = [event for event in possible if event]
    if len(events) <= MAX_DEVICE_EVENTS:
        yield from events
        return
    counts = Counter(str(event.keys["verdict"]) for event in events)
    text = ", ".join(f"{count} {finding}" for finding, count in sorted(counts.items()))
    text = f"new verdicts on {len(events)} GPUs: {text}"
    yield LogEvent("gpu_verdict", max(event.level for event in events), text, {"devices": len(events)})


def _verdict_event(key: t.DeviceKey, verdict: t.GpuVerdict, was: t.GpuVerdict | None) -> LogEvent | None:
    condition, before = verdict.condition, None if was is None else was.condition
    keys = {**_device_keys(key), "verdict": condition.value, "verdict_before": before and before.value}
    name = f"{_device_name(key)} is {condition}"
    if condition is before:
        return None
    if condition in FAULTS:
        rests_on = ", ".join(f"{name} {value:.3g}" for name, value in verdict.evidence.items())
        text = f"{name}, {verdict.confidence:.0%} sure" + (f": {rests_on}" if rests_on else "")
        keys |= {"confidence": verdict.confidence, "evidence": dict(verdict.evidence)}
        return LogEvent("gpu_verdict", FAULTS[condition], text, keys)
    if was is None or before not in FAULTS or condition is t.GpuCondition.LOST:
        return None
    lasted_s = max(0.0, verdict.since_s - was.since_s)
    text = f"{name}, no longer {before} after {lasted_s:.0f} s"
    return LogEvent("gpu_verdict", logging.INFO, text, {**keys, "lasted_s": lasted_s})


def _device_keys(key: t.DeviceKey) -> dict[str, object]:
    return {"device": plain(key[1]), "host": plain(key[0])}


def _device_name(key: t.DeviceKey) -> str:
    host, device = map(plain, key)
    return f"{device} on {host}" if host else device
