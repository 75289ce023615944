"""The examples run as they are printed."""

import ast
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from autoglm_throttle.testing import assert_admitted, assert_limited

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "__init__.py")


@pytest.fixture(autouse=True)
def _as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.setenv("AUTOGLM_THROTTLE_GPU", "none")
    for name in [name for name in sys.modules if name.startswith("examples.")]:
        monkeypatch.delitem(sys.modules, name)


def loaded(name: str) -> Any:
    __import__(f"examples.{name}")
    return sys.modules[f"examples.{name}"]


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost:8000")


async def test_the_inference_service_answers_limits_and_explains() -> None:
    async with client(loaded("inference_service").app) as caller:
        ask = {"prompt": "hello there"}
        answer = await caller.post("/v1/generate", json=ask)
        assert answer.json() == {"text": "there hello"}
        items = answer.headers["ratelimit-policy"].split(", ")
        assert sorted(items) == ['"user-1s";q=3;w=1', '"user-60s";q=30;w=60']
        for _ in range(30):  # the fourth within a second is refused, on a slow machine the 31st
            answer = await caller.post("/v1/generate", json=ask)
            if answer.status_code != 200:
                break
        assert_limited(answer, "user")
        assert_admitted(await caller.post("/v1/embed", json=ask))
        assert (await caller.post("/v1/batch", json=[ask, ask])).json() == {"accepted": 2}
        assert (await caller.get("/v1/models")).json() == ["echo-1"]
        assert (await caller.get("/ready")).json() == {"ready": True}
        metrics = await caller.get("/metrics", follow_redirects=True)
        assert 'requests_total{decision="limited",priority="high",reason="user"} 1.0' in metrics.text
        schema = (await caller.get("/openapi.json")).json()
        assert "429" in schema["paths"]["/v1/generate"]["post"]["responses"]
        assert "429" not in schema["paths"]["/ready"]["get"]["responses"]


async def test_an_existing_app_is_limited_without_being_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_USER_LIMIT", "5/minute")
    async with client(loaded("wrap_existing").app) as caller:
        answers = [await caller.get("/") for _ in range(6)]
        for answer in answers[:5]:
            assert answer.text == "hello from /\n"
        assert_limited(answers[5], "user")
        assert_admitted(await caller.get("/health"))


def test_the_users_own_tests_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "examples", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_what_the_head_says_to_run_is_there(path: Path) -> None:
    head = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    commands = [shlex.split(line) for line in head.splitlines() if line.startswith("    ")]
    for words in commands:
        for word in words:
            if word.startswith("examples."):
                module, _, name = word.partition(":")
                assert hasattr(loaded(module.removeprefix("examples.")), name)
            elif word.startswith("examples/"):
                assert (ROOT / word).exists()
