"""Secrets in any part of a request are neither in the file nor in reports about it."""

from __future__ import annotations

import asyncio
import logging
import string
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autoglm_throttle import Settings, Throttle, ThrottleMiddleware
from autoglm_throttle.settings.groups.callers import CallerSettings
from autoglm_throttle.settings.groups.observe import RecordBody
from autoglm_throttle.traffic.record import (
    RecordedRequest,
    Recorder,
    RecorderMiddleware,
    RecorderSettings,
    check,
    info,
    info_lines,
    open_recording,
)
from tests.traffic.record.recorded import ask, hello, plain, scope

SECRETS = st.text(string.ascii_letters + string.digits, min_size=16, max_size=40)
AGENT = b"Mozilla/5.0 (X11; Linux x86_64) curl/8.5"
WINDOW = 8
"""Characters in a row of a secret that may not be found either."""

Scope = dict[str, Any]
Plant = Callable[[Scope, str], None]


def header(name: str, value: str = "{}") -> Plant:
    def plant(asked: Scope, secret: str) -> None:
        asked["headers"].append((name.format(secret).encode(), value.format(secret).encode()))

    return plant


def query(text: str) -> Plant:
    def plant(asked: Scope, secret: str) -> None:
        joint = b"&" if asked["query_string"] else b""
        asked["query_string"] += joint + text.format(secret).encode()

    return plant


def path(text: str, *, raw: bool = True, coded: bool = False, root: str = "") -> Plant:
    def plant(asked: Scope, secret: str) -> None:
        written = "".join(f"%{ord(letter):02x}" for letter in secret) if coded else secret
        asked["path"] = root + text.format(secret).replace("%2F", "/")
        asked["raw_path"] = (quote(root) + text.format(written)).encode() if raw else None
        asked["root_path"] = root

    return plant


def peer(asked: Scope, secret: str) -> None:
    asked["client"] = (secret, 1)


def method(asked: Scope, secret: str) -> None:
    asked["method"] = secret + "0"


def query_in_raw_path(asked: Scope, secret: str) -> None:
    asked["raw_path"] = asked["path"].encode() + b"?" + secret.encode()


PLACES: dict[str, Plant] = {
    "authorization": header("authorization", "Bearer {}"),
    "Authorization": header("Authorization", "Basic {}"),
    "proxy-authorization": header("PROXY-AUTHORIZATION"),
    "cookie": header("cookie", "a=1; session={}"),
    "Cookie": header("Cookie"),
    "set-cookie": header("Set-Cookie"),
    "x-api-key": header("x-api-key"),
    "X-API-Key": header("X-API-Key"),
    "identity": header("x-tenant-key"),
    "Identity": header("X-Tenant-KEY"),
    "unknown header": header("x-whatever"),
    "name of a header": header("x-{}", "1"),
    "address": header("x-forwarded-for"),
    "priority": header("x-priority"),
    "Priority": header("X-Priority", "high {}"),
    "value": query("token={}"),
    "coded value": query("a%20b=%41{}"),
    "name": query("{}=1"),
    "bare": query("{}"),
    "semicolon": query("page=1;token={}"),
    "empty name": query("={}"),
    "two signs": query("a=b={}"),
    "path": path("/users/{}/orders"),
    "path without raw": path("/users/{}/orders", raw=False),
    "coded path": path("/users/{}", coded=True),
    "coded literal": path("/%75sers/{}"),
    "coded slash": path("/users%2F{}/orders"),
    "coded slash in it": path("/users/1%2F{}"),
    "case": path("/USERS/{}"),
    "slashes": path("//users//{}//"),
    "rest": path("/reset/a/{}/b"),
    "mounted": path("/users/{}", root="/api"),
    "peer": peer,
    "method": method,
    "query in raw path": query_in_raw_path,
}


def planted(places: list[str], secret: str) -> Scope:
    asked = scope("/v1/predict")
    asked["headers"] = [(b"user-agent", AGENT)]
    for place in places:
        if place.startswith("coded literal"):
            asked["path"], asked["raw_path"] = f"/users/{secret}", f"/%75sers/{secret}".encode()
        else:
            PLACES[place](asked, secret)
    return asked


async def fails(asked: Any, receive: Any, send: Any) -> None:
    """An app whose exception contains the path; our log must not repeat it."""
    await receive()
    raise RuntimeError(asked["path"])


async def record(recorder: Recorder, asked: Scope, body: list[bytes], app: Any) -> None:
    throttle = Throttle(Settings(identity="header:x-tenant-key", user_limit="2/minute", gpu="none"))
    recorded = RecorderMiddleware(ThrottleMiddleware(app, throttle=throttle), recorder)
    for _ in range(3):  # the third is refused
        try:
            await ask(recorded, {**asked, "headers": list(asked["headers"])}, body)
        except RuntimeError:
            assert app is fails


def found(secret: str, text: str) -> bool:
    windows = {secret[place : place + WINDOW].lower() for place in range(len(secret) - WINDOW + 1)}
    return any(window in text.lower() for window in windows)


def recorded_texts(
    places: list[str], secret: str, body: RecordBody, name: str, app: Any
) -> tuple[str, str, list[RecordedRequest]]:
    """Record a request; return the file's text, the texts about the file, and its entries."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(
            RecorderSettings(
                path=Path(folder) / name,
                headers=("x-model",),
                query=("page",),
                mask_paths=("/users/{id}", "/reset/*"),
                body=body,
            ),
            CallerSettings(identity="header:X-Tenant-Key"),
        )
        asked = planted(places, secret)
        asyncio.run(record(recorder, asked, [b'{"password": "', secret.encode(), b'"}'], app))
        recorder.close()
        assert recorder.file is not None
        stored = plain(recorder.file).decode()
        reports = (
            list(info_lines(info(recorder.file))) + check(recorder.file)[1].messages + [repr(recorder.counts)]
        )
        return stored, "\n".join(reports), list(open_recording(recorder.file).entries())


@cache
def without_secret(body: RecordBody, app: Any) -> str:
    """Return the texts that every recording contains; hypothesis also tries their words as secrets."""
    return "\n".join(recorded_texts([], "", body, "a.jsonl", app)[:2])


@given(
    secret=SECRETS,
    places=st.lists(st.sampled_from(sorted(PLACES)), min_size=1, max_size=6, unique=True),
    body=st.sampled_from([RecordBody.HASH, RecordBody.NONE]),
    name=st.sampled_from(["a.jsonl", "a.jsonl.gz"]),
    app=st.sampled_from([hello, fails]),
)
@settings(max_examples=3 * settings().max_examples)
def test_no_part_of_a_planted_secret_is_kept(
    secret: str, places: list[str], body: RecordBody, name: str, app: Any
) -> None:
    assume(not found(secret, without_secret(body, app)))
    stored, reports, entries = recorded_texts(places, secret, body, name, app)
    assert len(entries) == 3
    assert ("user-agent", AGENT.decode()) in entries[0].headers
    assert not found(secret, stored), places
    assert not found(secret, reports), places


@pytest.mark.parametrize("place", PLACES)
def test_each_place_alone(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "Zq7Xw2Kj9Vb4Nm8Tr5Ys"
    recorder = Recorder(
        RecorderSettings(path=tmp_path / "a.jsonl", mask_paths=("/users/{id}", "/reset/*")),
        CallerSettings(identity="header:x-tenant-key"),
    )
    asyncio.run(record(recorder, planted([place], secret), [secret.encode()], hello))
    recorder.close()
    assert not found(secret, (tmp_path / "a.jsonl").read_text())
    assert not found(secret, caplog.text)


def test_a_place_that_was_allowed_is_kept(tmp_path: Path) -> None:
    """Shows that the test above would find a stored secret."""
    secret = "Zq7Xw2Kj9Vb4Nm8Tr5Ys"
    recorder = Recorder(
        RecorderSettings(
            path=tmp_path / "a.jsonl", headers=("X-Whatever",), query=("token",), body=RecordBody.FULL
        )
    )
    asked = planted(["unknown header", "value", "path"], secret)
    asyncio.run(record(recorder, asked, [secret.encode()], hello))
    recorder.close()
    first = next(open_recording(tmp_path / "a.jsonl").entries())
    assert first.target == f"/users/{secret}/orders?token={secret}"
    assert ("x-whatever", secret) in first.headers
    assert first.body == secret.encode()
