"""The pytest plugin, in a pytest of its own."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

APP = """
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def get(app, path="/"):
        sent = []
        async def send(message):
            sent.append(message)
        async def receive():
            return {"type": "http.request"}
        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "client": ("192.0.2.1", 1)}
        await app(scope, receive, send)
        return sent
"""

TESTS = """
    import asyncio
    import pytest
    from autoglm_throttle import Throttle, Settings, Demand
    from autoglm_throttle.testing import assert_admitted, assert_limited, assert_rejected
    from app import app, get

    def test_the_fixtures_belong_together(fake_clock, fake_gpu, throttle_app):
        wrapped = throttle_app(app)
        assert wrapped.throttle.clock is fake_clock
        assert wrapped.throttle.gpu is fake_gpu

    def test_plain(throttle_app, fake_gpu, fake_clock):
        wrapped = throttle_app(app, user_limit="1/minute")
        fake_gpu.utilization_pct = 92
        wrapped.throttle.tick(3)
        assert wrapped.throttle.control_state().factor == 0.4
        assert_admitted(asyncio.run(get(wrapped)))
        assert_limited(asyncio.run(get(wrapped)), "user")
        fake_clock.advance(60)
        assert_admitted(asyncio.run(get(wrapped)))

    @pytest.mark.asyncio
    async def test_asyncio(throttle_app, fake_gpu):
        wrapped = throttle_app(app)
        fake_gpu.utilization_pct = 96
        wrapped.throttle.tick(3)
        assert_rejected(await get(wrapped), "gpu")

    @pytest.mark.anyio
    async def test_anyio(throttle_app, anyio_backend):
        wrapped = throttle_app(app, user_limit="1/minute")
        assert_admitted(await get(wrapped))
        assert_limited(await get(wrapped))

    def test_nothing_is_refused(no_throttle):
        theirs = Throttle(Settings(user_limit="1/minute", gpu="none"))
        for throttle in (theirs, no_throttle):
            for _ in range(5):
                with throttle.try_admit(Demand()) as permit:
                    assert permit.admitted
            assert sum(throttle.snapshot().requests.values()) == 5

    def test_afterwards_it_is_refused_again():
        theirs = Throttle(Settings(user_limit="1/minute", gpu="none"))
        assert [theirs.try_admit(Demand()).admitted for _ in range(2)] == [True, False]
"""


@pytest.fixture(autouse=True)
def _quiet(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")


@pytest.mark.slow
def test_every_fixture_works_in_each_kind_of_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(app=APP, test_it=TESTS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error")
    result.assert_outcomes(passed=7)  # anyio runs its test under asyncio and trio


def test_fixtures_explain_themselves(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--fixtures", "-p", "no:cacheprovider")
    messages = result.stdout.str()
    for name in ("fake_clock", "fake_gpu", "throttle_app", "no_throttle"):
        assert name in messages
    assert "for one test; they still count" in messages


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_kit_works_without_pytest() -> None:
    in_fresh_python(
        "import sys; sys.modules['pytest'] = None\n"
        "from autoglm_throttle.testing import throttle_for_tests\n"
        "throttle_for_tests().tick()"
    )


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    heavy = ["fastapi", "httpx", "httpx2", "prometheus_client", "pynvml", "starlette.testclient"]
    loaded = in_fresh_python(
        f"import sys; import autoglm_throttle.testing.plugin; print(*(set({heavy}) & set(sys.modules)))"
    )
    assert loaded.split() == []
