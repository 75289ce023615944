"""The hint as a dependency."""

from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI

from autoglm_throttle import Permit, ThrottleMiddleware
from autoglm_throttle.fastapi import advice, limit
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from autoglm_throttle.types import ResourceAdvice


def service(throttle: ManualThrottle) -> FastAPI:
    app = FastAPI()

    @app.get("/told")
    async def reported(found: Annotated[ResourceAdvice | None, Depends(advice)]) -> list[Any]:
        return [] if found is None else [found.precision, found.compute_priority]

    @app.get("/dear")
    async def dear(permit: Annotated[Permit, Depends(limit(cost=4))]) -> list[Any]:
        assert permit.advice is not None
        quota = throttle.snapshot().quota
        assert quota is not None
        return [permit.advice.precision, quota.cost]

    app.add_middleware(ThrottleMiddleware, throttle=throttle)
    return app


async def get(throttle: ManualThrottle, path: str, **fields: str) -> Any:
    transport = httpx.ASGITransport(service(throttle))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        return (await client.get(path, headers=fields)).json()


@pytest.mark.parametrize(("stated", "reported"), [("", "fp16"), ("int8", "int8")])
async def test_endpoint_depends_on_advice(stated: str, reported: str) -> None:
    throttle = throttle_for_tests(quotas=True, precisions="fp16,int8")
    assert await get(throttle, "/told", **{"x-precision": stated}) == [reported, 5]


async def test_there_is_none_without_quotas() -> None:
    assert await get(throttle_for_tests(), "/told") == []


async def test_an_additional_charge_is_no_other_request_in_memory() -> None:
    throttle = throttle_for_tests(quotas=True, precisions="fp16,int8")
    assert await get(throttle, "/dear", **{"x-precision": "int8"}) == ["int8", 1.0]
