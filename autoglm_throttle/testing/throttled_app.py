"""An app in a throttle that belongs to the test."""

from __future__ import annotations

from autoglm_throttle.asgi.middleware import ThrottleMiddleware
from autoglm_throttle.asgi.scope import App
from autoglm_throttle.testing.manual_throttle import ManualThrottle


class ThrottledApp(ThrottleMiddleware):
    """A `ThrottleMiddleware` with a `ManualThrottle`.

    Args:
        app: the app to protect.
        throttle: its limits.
    """

    throttle: ManualThrottle

    def __init__(self, app: App, throttle: ManualThrottle) -> None:
        super().__init__(app, throttle=throttle)
