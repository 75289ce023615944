"""The parts of README.md and docs/ that are made from the code.

Run: ``python -m tests.docs.parts`` to bring them up to date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

import httpx

from autoglm_throttle import ThrottleMiddleware
from autoglm_throttle.settings import SETTINGS
from autoglm_throttle.testing import throttle_for_tests
from benchmarks import figures
from examples.existing_service import app

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "docs" / "what-clients-see.md"


def settings_table() -> str:
    """The settings that a first user should know."""
    rows = "".join(
        f"| `{name.upper()}` | {f'`{known.default_text}`' if known.default_text else 'not set'} "
        f"| {known.about} |\n"
        for name, known in SETTINGS.items()
        if known.starred
    )
    return f"| variable | default | meaning |\n|---|---|---|\n{rows}"


def refusal(busy_pct: float) -> str:
    """What the sixth request of a caller gets whose limit is five a minute, 12.25 s after the first."""
    answer = asyncio.run(_refused(busy_pct))
    status = HTTPStatus(answer.status_code)
    fields = "".join(f"{name}: {value}\n" for name, value in answer.headers.items())
    return f"```http\nHTTP/1.1 {status.value} {status.phrase}\n{fields}\n{answer.text}\n```\n"


async def _refused(busy_pct: float) -> httpx.Response:
    throttle = throttle_for_tests(user_limit="5/minute")
    transport = httpx.ASGITransport(ThrottleMiddleware(app, throttle=throttle))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for _ in range(5):
            await client.get("/")
        throttle.clock.advance(9.25)
        throttle.gpu.utilization_pct = busy_pct
        throttle.tick(3)
        return await client.get("/")


def made() -> Mapping[Path, Mapping[str, str]]:
    """File -> name of the part -> what belongs between its marks."""
    answers = {"limited": refusal(40), "rejected": refusal(97)}
    return {
        figures.README: {**dict(figures.parts()), "settings": settings_table(), **answers},
        CLIENTS: answers,
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
