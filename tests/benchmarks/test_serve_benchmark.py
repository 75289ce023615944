"""The rows of the benchmark under uvicorn: each answers as its row says, and reports its CPU time."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import served
from benchmarks.overloaded import CPU_PATH
from benchmarks.serve import KEPT, NAMES, REFUSED
from tests.traffic.asgi_driver import ask

pytestmark = pytest.mark.slow

IN_MEMORY = [name for name in NAMES if "redis" not in name]


@pytest.mark.parametrize("name", IN_MEMORY)
async def test_row_answers_as_it_says(name: str) -> None:
    app = getattr(served, name)

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        more = {"http_version": "1.1", "scheme": "http", "root_path": "", "query_string": b""}
        await app(
            {**more, **scope, "client": ("10.0.0.1", 1), "headers": [(b"x-api-key", b"1")]}, receive, send
        )

    answers = [await ask(whole, "GET", "/predict") for _ in range(3)]
    last = 429 if name.partition("_")[2] in REFUSED else 200
    assert [answer.status for answer in answers] == [200, last, last]
    has_fields = name.partition("_")[2] not in {"bare", "ratelimit", "limits", "ratelimitrefused"}
    assert (b"ratelimit" in answers[-1].headers) is has_fields
    assert (await ask(whole, "GET", CPU_PATH)).json["cpu_s"] > 0.0


def test_bars_are_of_rows() -> None:
    assert KEPT.keys() <= set(NAMES)


def test_a_name_without_a_row_is_no_app() -> None:
    with pytest.raises(AttributeError):
        _ = served.asgi_other
