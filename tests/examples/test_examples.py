"""The examples run as they are printed."""

import ast
import asyncio
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import anyio
import httpx
import pytest
import requests

from autoglm_throttle import Demand, GuardRejected
from autoglm_throttle.testing import assert_admitted, assert_limited, assert_shed, throttle_for_tests
from tests.resilience.test_classifier_foreign import status_server

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
        # Below /v1/ the fields are OpenAI's, of the limit with the least share left.
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
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


async def test_llm_service_holds_a_slot_until_the_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    example = loaded("llm_service")
    throttle = throttle_for_tests(policy="adaptive", inflight_max=1, **example.SETTINGS)
    words, may_speak = example.words, anyio.Event()

    async def held_words(prompt: Any) -> AsyncIterator[str]:
        await may_speak.wait()  # on a slow machine both answers could end before the load is read
        async for word in words(prompt):
            yield word

    monkeypatch.setattr(example, "words", held_words)
    async with client(example.create_app(throttle)) as caller:
        first, second = (asyncio.create_task(caller.post("/v1/chat", json={"prompt": "a"})) for _ in "ab")
        with anyio.fail_after(60.0):
            while (load := (await caller.get("/load")).json())["waiting"] == 0:
                await anyio.lowlevel.checkpoint()
        assert (load["in_flight"], load["limit"], load["waiting"]) == (1, 1, 1)
        assert not first.done()
        may_speak.set()
        for answer in await asyncio.gather(first, second):
            assert answer.text.count("word") == 8
        assert (await caller.get("/load")).json()["in_flight"] == 0
        assert (await caller.post("/v1/embeddings", json={"prompt": "a bc"})).json() == {
            "embedding": [0.1, 0.2]
        }
        summary = await caller.post("/v1/summaries", json={"prompt": "a"})
        assert summary.json()["summary"].count("word") == 8


@pytest.mark.parametrize(
    ("path", "within", "patience_s"),
    [
        ("/v1/chat", None, 15.0),
        ("/v1/chat", "2", 0.5),
        ("/v1/chat", "900", 15.0),
        ("/v1/embeddings", None, 1.25),
        ("/v1/summaries", None, 15.0),  # no longer than requests with the shortest objective
    ],
)
async def test_the_llm_service_lets_wait_as_long_as_is_of_use(
    path: str, within: str | None, patience_s: float
) -> None:
    example = loaded("llm_service")
    throttle = throttle_for_tests(policy="adaptive", inflight_max=1, **example.SETTINGS)
    throttle.try_admit(Demand())
    async with client(example.create_app(throttle)) as caller:
        fields = {} if within is None else {"x-within": within}
        asked = asyncio.create_task(caller.post(path, json={"prompt": "a"}, headers=fields))
        await anyio.wait_all_tasks_blocked()
        throttle.clock.advance(patience_s - 0.01)
        throttle.called()  # wakes those who have waited in vain
        await anyio.wait_all_tasks_blocked()
        assert not asked.done()
        throttle.clock.advance(0.02)
        throttle.called()
        assert_shed(await asked, "queue")


async def test_an_existing_app_is_limited_without_being_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOGLM_THROTTLE_USER_LIMIT", "5/minute")
    async with client(loaded("wrap_existing").app) as caller:
        answers = [await caller.get("/") for _ in range(6)]
        for answer in answers[:5]:
            assert answer.text == "hello from /\n"
        assert_limited(answers[5], "user")
        assert_admitted(await caller.get("/health"))


@pytest.mark.slow
def test_the_users_own_tests_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "examples", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_commands_in_the_docstring_exist(path: Path) -> None:
    head = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    commands = [shlex.split(line) for line in head.splitlines() if line.startswith("    ")]
    for words in commands:
        for word in words:
            if word.startswith("examples."):
                module, _, name = word.partition(":")
                assert hasattr(loaded(module.removeprefix("examples.")), name)
            elif word.startswith("examples/"):
                assert (ROOT / word).exists()


async def test_the_guarded_downstream_goes_on_without_its_recommender() -> None:
    example = loaded("guarded_downstream")
    throttle = throttle_for_tests()
    stores = {"well": True}

    def vectors(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=["cat-0"]) if stores["well"] else httpx.Response(503)

    async with client(example.create_app(throttle, httpx.MockTransport(vectors))) as caller:
        before = await caller.get("/search/cats")
        assert before.json() == {"found": ["cat-0"], "related": ["more cats"]}
        assert "x-degraded" not in before.headers
        assert (await caller.post("/trouble")).json() == "in trouble"
        for _ in range(7):
            during = await caller.get("/search/cats")
            assert during.json() == before.json()
        assert during.headers["x-degraded"].startswith("stale")
        assert (await caller.get("/search/dogs")).json()["related"] == []
        assert (await caller.get("/guards")).json() == {"vector-db": "closed", "related": "open"}
        stores["well"] = False
        for _ in range(3):
            with pytest.raises(httpx.HTTPStatusError):
                await caller.get("/search/cats")
        refused = await caller.get("/search/cats")
        assert_shed(refused, "breaker")
        assert 1 <= int(refused.headers["retry-after"]) <= 6


def test_rejections_are_connection_errors_of_requests() -> None:
    throttle = throttle_for_tests()
    with status_server() as url, requests.Session() as session:
        session.mount(url, loaded("guarded_clients").GuardedAdapter(throttle, "models"))
        assert [session.get(f"{url}/503").status_code for _ in range(5)] == [503] * 5
        with pytest.raises(requests.ConnectionError, match="models is open") as caught:
            session.get(f"{url}/200")
        throttle.clock.advance(10.0)
        assert session.get(f"{url}/200").status_code == 200
    assert isinstance(caught.value.__cause__, GuardRejected)
    assert caught.value.request is not None
    assert caught.value.request.url == f"{url}/200"


async def test_rejections_are_connection_errors_of_aiohttp() -> None:
    throttle = throttle_for_tests(breaker_timeout_s=60)
    guarded = loaded("guarded_clients").guarded(throttle, "models")
    with status_server() as url:
        async with aiohttp.ClientSession(middlewares=[guarded]) as session:
            assert [(await session.get(f"{url}/503")).status for _ in range(5)] == [503] * 5
            with pytest.raises(aiohttp.ClientConnectionError, match="models is open") as caught:
                await session.get(f"{url}/200")
            throttle.clock.advance(10.0)
            assert (await session.get(f"{url}/200")).status == 200
    assert isinstance(caught.value.__cause__, GuardRejected)


async def test_the_app_of_sglang_is_wrapped_and_its_probes_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.applications import Starlette

    server = ModuleType("http_server")
    server.app = Starlette()  # type: ignore[attr-defined]
    monkeypatch.setenv("AUTOGLM_THROTTLE_USER_LIMIT", "1/minute")
    example = loaded("sglang_server")
    monkeypatch.setattr(example, "server_module", lambda: server)
    async with client(example.app) as caller:
        for key, expected in (("a", 404), ("a", 429), ("b", 404)):
            headers = {"authorization": f"Bearer {key}"}
            assert (await caller.get("/generate", headers=headers)).status_code == expected
        assert [(await caller.get("/v1/loads")).status_code for _ in range(3)] == [404] * 3
    with pytest.raises(AttributeError):
        _ = example.nothing


def test_traced_service_prints_the_decision() -> None:
    code = (
        "import asyncio, httpx\n"
        "from examples.traced_service import create_app\n"
        "async def ask():\n"
        "    transport = httpx.ASGITransport(create_app())\n"
        "    async with httpx.AsyncClient(transport=transport, base_url='http://test') as client:\n"
        "        print((await client.get('/predict')).text)\n"
        "asyncio.run(ask())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert '"autoglm_throttle.decision": "admitted"' in done.stdout
