"""An app that knows nothing of the throttle: here Starlette, but any ASGI app will do."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"hello from {request.url.path}\n")


app = Starlette(routes=[Route("/", hello), Route("/health", hello)])
