"""Diagnoses a storage of the ``limits`` package: whether it counts users, and its latency."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Final

from autoglm_throttle.cli.distance import ROUND_TRIPS, round_trip
from autoglm_throttle.cli.finding import Finding, Level, within
from autoglm_throttle.limiting.shared.limits_window import LimitsWindow
from autoglm_throttle.limiting.shared.store import WORST_WINDOW, StoreCharge, StoreErrorKind
from autoglm_throttle.model import UserLimit
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.quantity import plain

REPLY_S: Final = 0.5
"""Timeout of each reply: ten times the deadline of a decision."""

ALL_S: Final = 5.0
"""Timeout of the whole diagnosis: looking up a host's name has no timeout of its own."""

_LIMIT: Final = (UserLimit("doctor-1s", 1000, 1),)


def examine(settings: Settings) -> list[Finding]:
    """Diagnose the storage of ``USER_STORAGE`` within `TOTAL_TIMEOUT_S`."""
    uri = settings.text_of("user_storage")
    try:
        return within(ALL_S, lambda: asyncio.run(_examine(settings, uri)))
    except TimeoutError:
        text = f"{uri}: no answer within {plain(ALL_S)} s"
        return [_finding("connection", Level.FAIL, text, "can the name of its host be looked up?")]
    except ValueError as error:
        return [_finding("connection", Level.FAIL, f"{uri}: {error}")]


async def _examine(settings: Settings, uri: str) -> list[Finding]:
    secret = settings.user_storage.get_secret_value() if settings.user_storage is not None else ""
    store = LimitsWindow(
        secret, REPLY_S, prefix=settings.redis_prefix, service=settings.service, headers=False
    )
    try:
        trouble = await store.probe()
        if trouble is not None:
            return [_away(store, uri, trouble)]
        findings = [_finding("connection", Level.OK, f"{uri} answers")]
        charge = [StoreCharge("doctor", _LIMIT, secrets.token_hex(8), 1)]
        times = []
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            answer = await store.charge(charge)
            times.append(time.monotonic() - began)
            if isinstance(answer, StoreErrorKind):
                return [*findings, _away(store, uri, answer)]
    finally:
        store.disconnect()
    findings.append(round_trip("storage", times, settings.redis_deadline_s))
    return [*findings, _exactness(approximate=store.approximate)]


def _away(store: LimitsWindow, uri: str, trouble: StoreErrorKind) -> Finding:
    text = f"{uri}: {store.last_error.splitlines()[0] if store.last_error else trouble.value}"
    return _finding("connection", Level.FAIL, text, "is it running, and does USER_STORAGE name it?", trouble)


def _exactness(*, approximate: bool) -> Finding:
    if not approximate:
        return _finding("counting", Level.OK, "it counts with a log of each user")
    text = f"it counts with two counters: up to {WORST_WINDOW} times a limit may pass in one window"
    return _finding("counting", Level.WARN, text, "a Redis counts exactly: REDIS_URL")


def _finding(
    item: str, level: Level, message: str, hint: str = "", trouble: StoreErrorKind | None = None
) -> Finding:
    return Finding("storage", item, level, message, hint, None if trouble is None else trouble.value)
