"""With some extras installed and others not: what is there works, what is missing is named.

Run by the workflow in an environment with the package, one extra and nothing else:

    python tests/project/extras.py [EXTRA ...]
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
from collections.abc import Callable
from importlib import import_module

from autoglm_throttle import Demand, Priority, Settings, Throttle, ThrottleError, ThrottleMiddleware
from autoglm_throttle._runtime import how_to_install

ROOMS = ("asgi", "cli", "fastapi", "observe", "testing", "testing.simulated", "traffic")


def admits() -> None:
    """A throttle works without any extra."""
    throttle = Throttle(Settings(gpu="none"), sampling="manual")
    verdict = throttle.try_admit(Demand(Priority.HIGH, "someone"))
    assert verdict.admitted, verdict
    ThrottleMiddleware(lambda *_: asyncio.sleep(0), throttle=throttle)


def nvml() -> None:
    """Its package is needed where the user asks for NVML by name."""
    Throttle(Settings(gpu="nvml"), sampling="manual")


def prometheus() -> None:
    """Its package is needed where the user asks for metrics by name."""
    settings = Settings(gpu="none", metrics="prometheus")
    import_module("autoglm_throttle.observe").metrics_app(Throttle(settings, sampling="manual"))


def traffic() -> None:
    """Its parser is needed by the generator."""
    import_module("autoglm_throttle.traffic.generator.connection").load_httptools()


def fastapi() -> None:
    """The leaf works on an app of the user's FastAPI."""
    limit = import_module("autoglm_throttle.fastapi").limit
    assert import_module("fastapi").Depends(limit)


def httpx() -> None:
    """The transports are made of its own."""
    face = import_module("autoglm_throttle.resilience.httpx")
    throttle = Throttle(Settings(gpu="none"), sampling="manual")
    assert import_module("httpx").Client(transport=face.GuardTransport(throttle))


def redis() -> None:
    """Its client is needed where the user names a server."""
    Throttle(
        Settings(gpu="none", redis_url="redis://127.0.0.1:1/0", user_limit="5/minute"), sampling="manual"
    )


def otel() -> None:
    """Its API is needed where the user asks for the export by name."""
    throttle = Throttle(Settings(gpu="none"), sampling="manual")
    import_module("autoglm_throttle.observe").export_to_otel(throttle)


def gateway() -> None:
    """Its server and its client are needed before the upstreams are read, of which the second is wrong."""
    said = printed("gateway", "--upstream", "http://127.0.0.1:1", "--upstream", "no-url")
    if "no-url" not in said:
        raise ImportError(said)


def completion() -> None:
    """Its package writes the script of a shell."""
    said = printed("--print-completion", "bash")
    if "complete -" not in said:
        raise ImportError(said)


def printed(*words: str) -> str:
    """Return the output of a command that ends by itself."""
    output = io.StringIO()
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        contextlib.suppress(SystemExit),
    ):
        import_module("autoglm_throttle.cli").main(list(words))
    return output.getvalue()


FEATURES: dict[str, Callable[[], None]] = {
    "completion": completion,
    "fastapi": fastapi,
    "gateway": gateway,
    "httpx": httpx,
    "nvml": nvml,
    "otel": otel,
    "prometheus": prometheus,
    "redis": redis,
    "traffic": traffic,
}
"""The features by their extra. The extra `host` has none: without its package some figures are absent."""


def trouble(feature: Callable[[], None]) -> str:
    """Return what a feature says against working here; nothing if it works."""
    try:
        feature()
    except (ThrottleError, ImportError, ValueError) as error:
        return repr(error)
    return ""


def main(*installed: str) -> None:
    """Try every room and every feature."""
    for room in ROOMS:
        import_module(f"autoglm_throttle.{room}")
    admits()
    for extra, feature in FEATURES.items():
        said = trouble(feature)
        assert (extra in installed) is not bool(said), f"{extra}: {said or 'works without being installed'}"
        # What is FastAPI's own is imported by the user, whose error names the package.
        assert not said or how_to_install(extra) in said or extra == "fastapi", said
        print(f"{extra}: {'missing, and named' if said else 'works'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
