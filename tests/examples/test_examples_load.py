"""The examples for load: the simulated service, and the scripts for other tools, which read our shapes."""

from __future__ import annotations

import ast
import asyncio
import json
import shutil
import subprocess
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx
import pytest

from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.plan import LoadShape

ROOT = Path(__file__).parents[2]
LOCUSTFILE = ROOT / "examples" / "locustfile.py"
TRUST = "AUTOGLM_THROTTLE_PRIORITY_HEADER_TRUST"
K6 = ROOT / "examples" / "k6.js"
SHAPES = (
    "fixed:100:20s",
    "step:100,1000,3000,5000:20",
    "step:50:200:4:500ms",
    "spike:0.5:40:10:2m",
    "ramp:0:30:1e1s",
)
UNREADABLE = (
    "fixed:100",
    "step:1,x:5",
    "wave:1:2:3",
    "fixed::10",
    "fixed:-1:10",
    "ramp:1:2:3h",
    "fixed:1:s",
    "fixed:0:10",
    "fixed:1:0",
    "",
)

STUBS = {
    "package.json": json.dumps(
        {
            "name": "k6",
            "type": "module",
            "exports": {"./http": "./http.js", "./metrics": "./metrics.js"},
        }
    ),
    "http.js": """
        export default {
          setResponseCallback: (expected) => { globalThis.expected = expected; },
          expectedStatuses: (...statuses) => statuses,
          post: (url, body, given) => { globalThis.sent.push([url, body, given]); return globalThis.answer; },
        };
    """,
    "metrics.js": """
        export class Counter {
          constructor(name) { this.name = name; }
          add(count, tags) { globalThis.counted.push([this.name, count, tags]); }
        }
    """,
}
"""As much of k6 as the script uses."""

ASK = """
    globalThis.__ENV = JSON.parse(process.argv[2]);
    Object.assign(globalThis, { sent: [], counted: [], answer: null });
    const script = await import('./k6.mjs');
    for (const status of [200, 429, 503]) { globalThis.answer = { status }; script.default(); }
    const priorities = [0, 0.0999, 0.1, 0.3999, 0.4, 0.999].map(script.priority);
    console.log(JSON.stringify({ options: script.options, expected, sent, counted, priorities }));
"""


def test_simulated_service_serves_and_its_throttle_reads_its_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    told = {"SIM_CAPACITY_RPS": "1000", "AUTOGLM_THROTTLE_USER_LIMIT": "2/minute"}
    from examples.simulated_service import create_app

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(create_app(told))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as caller:
            return [(await caller.post("/v1/generate", json={})).status_code for _ in range(3)]

    assert asyncio.run(ask()) == [200, 200, 429]


@pytest.mark.parametrize(("told", "statuses"), [({}, [200] * 3), ({TRUST: "lower"}, [200, 429, 429])])
def test_simulated_service_trusts_the_load_test_priorities(
    told: dict[str, str], statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.simulated_service import create_app

    rates = {"AUTOGLM_THROTTLE_POLICY": "fixed", "AUTOGLM_THROTTLE_RATE_MID_RPS": "1"}

    async def ask() -> list[int]:
        transport = httpx.ASGITransport(create_app(rates | told))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as caller:
            high = {"x-priority": "high"}
            return [(await caller.post("/v1/generate", json={}, headers=high)).status_code for _ in range(3)]

    assert asyncio.run(ask()) == statuses


def test_simulated_gpu_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from autoglm_throttle.testing.simulated import BatchSpec, LlmSpec
    from examples.simulated_service import spec

    assert isinstance(spec({"SIM_MODE": "llm"}).work, LlmSpec)
    assert spec({}).work == BatchSpec()
    told = {"SIM_MAX_BATCH": "128", "SIM_BASE_S": "0.005", "SIM_CAPACITY_RPS": "6000"}
    assert spec(told).work == BatchSpec(max_batch=128, base_s=0.005, capacity_rps=6000.0)


def rate_rps() -> Callable[[LoadShape, float], float | None]:
    """The function of this name in the locustfile, which cannot be imported without Locust."""
    tree = ast.parse(LOCUSTFILE.read_text(encoding="utf-8"))
    found: list[ast.stmt] = [node for node in tree.body if getattr(node, "name", "") == "rate_rps"]
    names: dict[str, Any] = {"Shape": LoadShape, "accumulate": accumulate, "bisect_right": bisect_right}
    exec(compile(ast.Module(found, []), str(LOCUSTFILE), "exec"), names)
    return names["rate_rps"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", SHAPES)
def test_the_locustfile_follows_the_shape(text: str) -> None:
    shape, rate = LoadShape.parse(text), rate_rps()
    begun_s = 0.0
    for level in shape.levels:
        middle = (level.rate_rps + level.last_rps) / 2
        assert rate(shape, begun_s) == pytest.approx(level.rate_rps)
        assert rate(shape, begun_s + level.duration_s / 2) == pytest.approx(middle)
        begun_s += level.duration_s
    assert rate(shape, begun_s) is None


def test_locust_takes_the_locustfile_where_it_is_installed() -> None:
    locust = shutil.which("locust")
    if locust is None:
        names = [node.name for node in ast.walk(ast.parse(LOCUSTFILE.read_text())) if hasattr(node, "name")]
        assert {"Steps", "tick", "Caller", "high", "mid", "low"} <= set(names)
    else:
        done = subprocess.run(
            [locust, "-f", str(LOCUSTFILE), "--list"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Caller" in done.stdout + done.stderr


def k6(folder: Path, environment: dict[str, str]) -> dict[str, Any] | str | None:
    """What the script gives k6, by Node and stubs; its complaint, or None where there is no Node."""
    node = shutil.which("node")
    if node is None:
        return None
    (folder / "node_modules" / "k6").mkdir(parents=True)
    for name, text in STUBS.items():
        (folder / "node_modules" / "k6" / name).write_text(text, encoding="utf-8")
    shutil.copy(K6, folder / "k6.mjs")
    (folder / "ask.mjs").write_text(ASK, encoding="utf-8")
    done = subprocess.run(
        [node, "ask.mjs", json.dumps(environment)], cwd=folder, capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("text", SHAPES)
def test_k6_is_given_the_stages_of_the_shape(text: str, tmp_path: Path) -> None:
    found = k6(tmp_path, {"SHAPE": text})
    if found is None:
        assert "READERS" in K6.read_text(encoding="utf-8")
        return
    assert isinstance(found, dict), found
    scenario = found["options"]["scenarios"]["shape"]
    levels = LoadShape.parse(text).levels
    assert [stage["target"] for stage in scenario["stages"]] == [
        round(60 * rate) for level in levels for rate in (level.rate_rps, level.last_rps)
    ]
    assert [stage["duration"] for stage in scenario["stages"]] == [
        duration for level in levels for duration in ("0s", f"{round(1000 * level.duration_s)}ms")
    ]
    assert (scenario["executor"], scenario["timeUnit"]) == ("ramping-arrival-rate", "1m")
    assert scenario["startRate"] == scenario["stages"][0]["target"]


@pytest.mark.parametrize("text", UNREADABLE)
def test_k6_rejects_the_options_the_load_command_rejects(text: str, tmp_path: Path) -> None:
    with pytest.raises(TrafficError):
        LoadShape.parse(text)
    found = k6(tmp_path, {"SHAPE": text or " "})
    assert found is None or "in a shape: fixed:RATE:SECONDS" in str(found)


def test_k6_counts_rejections_as_answers_and_drops_as_failures(tmp_path: Path) -> None:
    found = k6(tmp_path, {"TARGET": "http://localhost:1/x"})
    if found is None:
        assert "dropped_iterations" in K6.read_text(encoding="utf-8")
        return
    assert isinstance(found, dict), found
    assert found["options"]["thresholds"] == {
        "http_req_duration{status:200}": ["p(99)<500"],
        "http_req_failed": ["rate<0.005"],
        "dropped_iterations": ["count<1"],
    }
    assert found["expected"] == [{"min": 200, "max": 399}, 429, 503]
    assert found["priorities"] == ["high", "high", "mid", "mid", "low", "low"]
    assert [name for name, _, _ in found["counted"]] == ["limited", "shed"]
    for url, body, given in found["sent"]:
        assert (url, body) == ("http://localhost:1/x", "{}")
        assert given["headers"]["x-priority"] == given["tags"]["priority"]
