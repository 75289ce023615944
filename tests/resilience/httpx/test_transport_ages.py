"""The age that an answer from memory says is the true one, whatever has happened to it before."""

from __future__ import annotations

from typing import Any

import httpx
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.resilience.fallback import Fallback
from tests.resilience.httpx.guarded_calls import Guarded, Parts, call

steps = st.tuples(
    st.integers(0, 60).map(lambda n: n / 4),
    st.sampled_from(["live", "slow", "error", "busy", "other"]),
    st.integers(0, 9),
)


@given(st.lists(steps, max_size=25))
def test_response_carries_its_age_and_is_never_too_old(
    taken: list[tuple[float, str, int]],
) -> None:
    """Each answer names the moment at which it was made; ages of one answer never fall."""
    guarded = Guarded(fallback=Fallback(stale=True, max_stale_s=20.0))
    ages: dict[bytes, int] = {}

    def handler(kind: str, aged: int) -> Any:
        def answer(_: httpx.Request) -> httpx.Response:
            if kind == "error":
                raise httpx.ReadError("cut")
            if kind == "busy":
                return httpx.Response(503)
            born = b"%r" % (guarded.clock() - aged)
            late = (lambda: guarded.clock.advance(3.0)) if kind == "slow" else (lambda: None)
            return httpx.Response(200, headers={"age": str(aged)}, stream=Parts(born, late))

        return answer

    for gap_s, kind, aged in taken:
        guarded.clock.advance(gap_s)
        url = "http://vectors.test/other" if kind == "other" else "http://vectors.test/near"
        try:
            response = call("sync", guarded, handler(kind, aged), url=url)
        except httpx.ReadError:
            continue
        if "x-degraded" not in response.headers:
            continue
        age, true_age = int(response.headers["age"]), guarded.clock() - float(response.content)
        assert age <= true_age < age + 1
        assert true_age <= 20.0
        assert age >= ages.get(response.content, 0)
        ages[response.content] = age
