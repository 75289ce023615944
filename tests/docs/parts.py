"""The parts of docs/ that are made from the code and from the records of the benchmarks.

Run: ``python -m tests.docs.parts`` to bring them up to date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

import httpx

from autoglm_throttle import Demand, Permit, Priority, Rejection, Settings, ThrottleMiddleware
from autoglm_throttle.cli.nginx import EdgeConfiguration, edge_tiers
from autoglm_throttle.settings import settings_table
from autoglm_throttle.settings.groups import GROUP_OF
from autoglm_throttle.testing import ManualThrottle, throttle_for_tests
from benchmarks import figures
from docs.generate.settings import meanings
from examples.existing_service import app

ROOT = Path(__file__).parents[2]
START = ROOT / "docs" / "getting-started.md"
NGINX = ROOT / "docs" / "nginx.md"
CLIENTS = ROOT / "docs" / "responses.md"


def first_settings() -> str:
    """The settings that a first user should know."""
    rows = "".join(
        f"| `{name.upper()}` | {f'`{known.default_text}`' if known.default_text else 'not set'} "
        f"| {meanings(GROUP_OF[name])[name].text} |\n"
        for name, known in settings_table().items()
        if known.starred
    )
    return f"| variable | default | meaning |\n|---|---|---|\n{rows}"


def nginx() -> str:
    """The configuration of nginx for the default settings."""
    settings = Settings()
    tiers = edge_tiers(settings, Priority.HIGH)
    edge = EdgeConfiguration(settings, tiers, "/run/autoglm-throttle", ["127.0.0.1:8000"], "throttle")
    return f"```nginx\n{edge.text('all', '80')}\n```\n"


def limited() -> ManualThrottle:
    """A throttle 12.25 s after the first of five requests of a caller whose limit is five a minute."""
    throttle = throttle_for_tests(user_limit="5/minute")
    _asked(throttle, times=5)
    throttle.clock.advance(12.25)
    return throttle


def busy() -> ManualThrottle:
    """The default policy before a service that does 100 requests/s, the line as long as is of use."""
    throttle = throttle_for_tests(policy=Settings().control.policy, min_share=0)  # no place in front of high
    for _ in range(300):
        permit = throttle.try_admit(Demand(Priority.HIGH))
        throttle.clock.advance(0.01)
        if isinstance(permit, Permit):
            permit.settle()
    for priority in (Priority.HIGH, Priority.LOW):
        while not isinstance(throttle.try_admit(Demand(priority)), Rejection):
            pass
    return throttle


def rejected() -> ManualThrottle:
    """The literal table, at the third sample of a GPU at 97 %."""
    throttle = throttle_for_tests(policy="tiers")
    throttle.gpu.utilization_pct = 97
    throttle.tick(3)
    return throttle


def refusal(throttle: ManualThrottle) -> str:
    """Response to a rejected request of low priority."""
    answer = _asked(throttle, times=1)
    status = HTTPStatus(answer.status_code)
    fields = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
    return f"```http\nHTTP/1.1 {status.value} {status.phrase}\n{fields}\n{answer.text}\n```\n"


def _asked(throttle: ManualThrottle, times: int) -> httpx.Response:
    """The last of so many answers."""
    transport = httpx.ASGITransport(ThrottleMiddleware(app, throttle=throttle))

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = [await client.get("/", headers={"x-priority": "low"}) for _ in range(times)]
        return answers[-1]

    return asyncio.run(ask())


def made() -> Mapping[Path, Mapping[str, str]]:
    """File -> name of the part -> text between its marks."""
    answers = {"limited": refusal(limited()), "busy": refusal(busy())}
    return {
        **figures.pages(),
        START: {"settings": first_settings()},
        NGINX: {"nginx": nginx()},
        CLIENTS: {**answers, "rejected": refusal(rejected())},
    }


def main() -> None:
    """Bring the files up to date."""
    for path, contents in made().items():
        text = path.read_text(encoding="utf-8")
        for name, content in contents.items():
            text = figures.fill(text, name, content)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
