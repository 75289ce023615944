"""Diagnoses a storage of the ``limits`` package: whether it counts users, and its latency."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Final

from autoglm_throttle.cli.doctor_result import DoctorResult, Severity, within
from autoglm_throttle.cli.store_latency import ROUND_TRIPS, round_trip
from autoglm_throttle.settings import Settings
from autoglm_throttle.settings.quantity import plain
from autoglm_throttle.store.limits_window import LimitsWindow
from autoglm_throttle.store.user_limit_store import WORST_WINDOW, StoreCharge, StoreErrorKind
from autoglm_throttle.types import UserLimit

REPLY_TIMEOUT_S: Final = 0.5
"""Timeout of each reply: ten times the deadline of a decision."""

TOTAL_TIMEOUT_S: Final = 5.0
"""Timeout of the whole diagnosis: looking up a host's name has no timeout of its own."""

_LIMIT: Final = (UserLimit("doctor-1s", 1000, 1),)


def diagnose(settings: Settings) -> list[DoctorResult]:
    """Diagnose the storage of ``USER_STORAGE`` within `TOTAL_TIMEOUT_S`."""
    uri = settings.text_of("user_storage")
    try:
        return within(TOTAL_TIMEOUT_S, lambda: asyncio.run(_diagnose(settings, uri)))
    except TimeoutError:
        text = f"{uri}: no answer within {plain(TOTAL_TIMEOUT_S)} s"
        return [_result("connection", Severity.FAIL, text, "can its host name be resolved?")]
    except ValueError as error:
        return [_result("connection", Severity.FAIL, f"{uri}: {error}")]


async def _diagnose(settings: Settings, uri: str) -> list[DoctorResult]:
    secret = settings.user_storage.get_secret_value() if settings.user_storage is not None else ""
    store = LimitsWindow(
        secret, REPLY_TIMEOUT_S, prefix=settings.redis_prefix, service=settings.service, headers=False
    )
    try:
        error_kind = await store.probe()
        if error_kind is not None:
            return [_unavailable(store, uri, error_kind)]
        results = [_result("connection", Severity.OK, f"{uri} answers")]
        charge = [StoreCharge("doctor", _LIMIT, secrets.token_hex(8), 1)]
        times = []
        for _ in range(ROUND_TRIPS):
            began = time.monotonic()
            answer = await store.charge(charge)
            times.append(time.monotonic() - began)
            if isinstance(answer, StoreErrorKind):
                return [*results, _unavailable(store, uri, answer)]
    finally:
        store.disconnect()
    results.append(round_trip("storage", times, settings.redis_deadline_s))
    return [*results, _exactness(approximate=store.approximate)]


def _unavailable(store: LimitsWindow, uri: str, error_kind: StoreErrorKind) -> DoctorResult:
    text = f"{uri}: {store.last_error.splitlines()[0] if store.last_error else error_kind.value}"
    return _result(
        "connection", Severity.FAIL, text, "is it running, and does USER_STORAGE name it?", error_kind
    )


def _exactness(*, approximate: bool) -> DoctorResult:
    if not approximate:
        return _result("counting", Severity.OK, "it counts with an exact log for each user")
    text = f"it counts with two counters: up to {WORST_WINDOW} times a limit may be admitted in one window"
    return _result("counting", Severity.WARN, text, "a Redis counts exactly: REDIS_URL")


def _result(
    item: str, level: Severity, message: str, hint: str = "", error_kind: StoreErrorKind | None = None
) -> DoctorResult:
    return DoctorResult(
        "storage", item, level, message, hint, None if error_kind is None else error_kind.value
    )
