"""``doctor`` on storages of `limits`."""

from __future__ import annotations

import asyncio
from threading import Event
from typing import Any

import pytest

from autoglm_throttle.cli import doctor_storage
from autoglm_throttle.store.user_limit_store import StoreErrorKind
from tests.cli.doctor_results import PASSWORD, Doctor, not_well

MEMCACHED = "async+memcached://127.0.0.1:1"


class Scripted:
    """A storage with scripted answers."""

    approximate = False
    probed: StoreErrorKind | None = None
    answers: Any = (1, 999, 0, 0, 0)
    last_error = ""
    end: Event | None = None
    dropped = 0

    def __init__(self, uri: str, deadline_s: float, **more: object) -> None:
        self.uri = uri

    async def probe(self) -> StoreErrorKind | None:
        if self.end is not None:
            await asyncio.to_thread(self.end.wait)
        return self.probed

    async def charge(self, charges: object) -> Any:
        return self.answers

    def disconnect(self) -> None:
        Scripted.dropped += 1


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    kind = type("Storage", (Scripted,), {})
    monkeypatch.setattr(doctor_storage, "LimitsWindow", kind)
    monkeypatch.setattr(Scripted, "dropped", 0)
    return kind


def test_a_storage_that_is_well(doctor: Doctor) -> None:
    status, findings = doctor(USER_STORAGE="async+memory://")
    assert (status, not_well(findings)) == (0, [])
    assert [finding["item"] for finding in findings] == ["connection", "round_trip", "counting"]
    assert findings[0]["message"] == "async+memory:// answers"


def test_a_storage_that_only_approximates(doctor: Doctor, storage: type[Scripted]) -> None:
    storage.approximate = True
    status, findings = doctor(USER_STORAGE=MEMCACHED)
    assert (status, not_well(findings)) == (0, [("counting", "warn")])
    assert "1.97 times" in findings[-1]["message"]


def test_a_dead_storage(doctor: Doctor, storage: type[Scripted]) -> None:
    storage.probed, storage.last_error = StoreErrorKind.UNREACHABLE, "OSError: refused\nand more"
    status, (finding,) = doctor(USER_STORAGE=MEMCACHED)
    assert (status, finding["item"], finding["value"]) == (1, "connection", "unreachable")
    assert finding["message"] == f"{MEMCACHED}: OSError: refused"
    assert Scripted.dropped == 1


def test_storage_that_dies_during_the_diagnosis_is_reported(doctor: Doctor, storage: type[Scripted]) -> None:
    storage.answers = StoreErrorKind.TIMEOUT
    status, findings = doctor(USER_STORAGE=MEMCACHED)
    assert (status, [f["level"] for f in findings]) == (1, ["ok", "fail"])
    assert findings[-1]["message"] == f"{MEMCACHED}: timeout"


def test_a_storage_that_hangs(
    doctor: Doctor, storage: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_storage, "TOTAL_TIMEOUT_S", 0.05)
    storage.end = Event()
    status, (finding,) = doctor(USER_STORAGE=MEMCACHED)
    storage.end.set()
    assert status == 1
    assert "no answer within 0.05 s" in finding["message"]


def test_storage_that_cannot_be_created_is_reported(
    doctor: Doctor, storage: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*args: object, **more: object) -> None:
        raise ValueError("needs pip install 'limits[async-memcached]'")

    monkeypatch.setattr(doctor_storage, "LimitsWindow", missing)
    status, (finding,) = doctor(USER_STORAGE=MEMCACHED.replace("//", f"//me:{PASSWORD}@"))
    assert (status, finding["level"]) == (1, "fail")
    assert finding["message"].endswith("needs pip install 'limits[async-memcached]'")
