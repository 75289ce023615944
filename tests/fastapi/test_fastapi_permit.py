"""An endpoint gets the permit of its request, and may give its slot back meanwhile."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI

from autoglm_throttle import Permit
from autoglm_throttle.asgi import ThrottleMiddleware
from autoglm_throttle.fastapi import permit
from tests.asgi.queued_clients import taken, with_places
from tests.asgi.run_app import request


async def test_endpoint_pauses_its_request_while_it_waits_for_others() -> None:
    throttle = with_places(1)
    api = FastAPI()
    seen: list[int] = []

    @api.get("/")
    async def endpoint(own: Annotated[Permit | None, Depends(permit)]) -> None:
        assert own is not None
        seen.append(taken(throttle)[0])
        own.pause()
        seen.append(taken(throttle)[0])
        own.resume()
        seen.append(taken(throttle)[0])

    answer = await request(ThrottleMiddleware(api, throttle=throttle))
    assert answer.status == 200
    assert seen == [1, 0, 1]
    assert taken(throttle) == (0, 0, 0)


async def test_exempt_request_has_no_permit() -> None:
    throttle = with_places(1, exempt_paths=["/free"])
    api = FastAPI()
    seen: list[Permit | None] = []

    @api.get("/free")
    async def endpoint(own: Annotated[Permit | None, Depends(permit)]) -> None:
        seen.append(own)

    await request(ThrottleMiddleware(api, throttle=throttle), "/free")
    assert seen == [None]
