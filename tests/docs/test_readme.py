"""The claims of README.md and of the pages: examples under uvicorn, generated parts, tables, defaults."""

import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from autoglm_throttle import Demand, Permit, Priority, Reason, Settings, TelemetryState, Throttle, Ticket
from autoglm_throttle.asgi.dialects import STATUS
from autoglm_throttle.asgi.responses import _QUEUE_DETAIL_TEXTS, EXPOSED_FIELDS
from autoglm_throttle.cli.tiers import band_text, bands
from autoglm_throttle.limiting.adaptive_limit import FIRST_LIMIT_UNSET
from autoglm_throttle.settings import PREFIX, settings_table
from autoglm_throttle.testing import throttle_for_tests
from autoglm_throttle.types import Policy
from benchmarks import figures, harness
from tests.docs import parts
from tests.docs.pages import ROOT, Command, blocks, commands
from tests.servers.server import cases

pytest_plugins = ["pytester"]

README = (ROOT / "README.md").read_text(encoding="utf-8")
DECIDES = (ROOT / "docs" / "admission-control.md").read_text(encoding="utf-8")
CLIENTS = (ROOT / "docs" / "responses.md").read_text(encoding="utf-8")
BENCHMARKS = figures.BENCHMARKS.read_text(encoding="utf-8")
SERVED = [command for command in commands() if command.words[:2] == ["uvicorn", "app:app"]]


SEARCHED = (
    "rate limiting",
    "load shedding",
    "back-pressure",
    "adaptive concurrency limit",
    "priority queue",
    "token bucket",
    "sliding window",
    "circuit breaker",
    "half-open",
    "fallback",
    "single-flight",
    "stale-if-error",
    "graceful degradation",
    "Retry-After",
    "GPU utilization",
    "DCGM",
    "vLLM",
)
"""Words by which a visitor searches for such a package."""


SERVERS = {"overloaded", "replayed", "sampled"}
"""Modules that a benchmark starts as its service."""


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("words", SEARCHED)
def test_readme_contains_the_search_terms(words: str) -> None:
    assert words.lower() in " ".join(README.lower().split())


def test_every_benchmark_has_a_row_and_every_record_its_link() -> None:
    modules = (path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    named = {name for text in modules for name in re.findall(r"python -m benchmarks\.(\w+)", text)}
    assert set(re.findall(r"^\| `(\w+)` \|", BENCHMARKS, re.MULTILINE)) == named - {"figures", *SERVERS}
    linked = set(re.findall(r"results/(\w+\.json)", BENCHMARKS))
    assert linked == {path.name for path in harness.RESULTS.glob("*.json")} - {"robust.json"}


@pytest.mark.parametrize("path", parts.made(), ids=lambda path: path.name)
def test_the_parts_made_from_code_are_up_to_date(path: Path) -> None:
    text = made = path.read_text(encoding="utf-8")
    for name, content in parts.made()[path].items():
        made = figures.fill(made, name, content)
    assert text == made, "run: python -m tests.docs.parts"


@pytest.mark.server
@pytest.mark.parametrize("command", cases({str(one): one for one in SERVED}, str(SERVED[0])))
def test_the_first_example_is_served_as_printed(command: Command, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(blocks("python")[0].text)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    limit = {f"{PREFIX}USER_LIMIT": "5/minute", f"{PREFIX}GPU": "none"}
    server = subprocess.Popen(
        [sys.executable, "-m", *command.words, "--port", "0"],
        cwd=tmp_path,
        env=inherited | limit | command.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    giving_up = threading.Timer(20.0, server.kill)
    giving_up.start()
    try:
        assert server.stderr is not None
        said = iter(server.stderr.readline, "")
        origin = next(found[1] for line in said if (found := re.search(r"(http://[\d.]+:\d+)", line)))
        statuses = [status(f"{origin}/ask") for _ in range(6)]
    finally:
        giving_up.cancel()
        server.terminate()
        server.communicate()
    assert statuses == [200] * 5 + [429]


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.slow
def test_the_test_of_the_readme_passes(pytester: pytest.Pytester) -> None:
    block = next(one for one in blocks("python") if one.page == "README.md" and "def test_" in one.text)
    pytester.makepyfile(block.text)
    pytester.makeini(f"[pytest]\nasyncio_default_fixture_loop_scope = function\npythonpath = {ROOT}\n")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_picture_shows_the_gpu_overloaded() -> None:
    picture = (ROOT / "docs" / "demo.svg").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", picture)
    assert "phase 5x" in shown
    factor = re.search(r"factor +([\d.]+)", shown)
    assert factor
    assert 0 < float(factor[1]) < 1
    assert "http" not in picture.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_demo_shows_high_priority_first() -> None:
    assert min(figures.high_shares(figures.DEMO.read_text(encoding="utf-8")).values()) > 95.0


def test_the_default_policy_is_the_one_that_is_described() -> None:
    assert Settings().control.policy is Policy.ADAPTIVE
    rows = re.findall(r"^\| (up to \d+ %|above .*?%) \| ([\d.]+)", DECIDES, re.MULTILINE)
    assert rows == [(band_text(low, high), f"{factor:g}") for low, high, factor in bands(Settings())]


def test_the_budget_and_the_reserves_are_those_of_the_page() -> None:
    settings = Settings()
    assert settings.concurrency.latency_budget == 1 / 4
    assert "`latency_budget` × `SLO_S`, a quarter of it" in DECIDES
    assert f"starts at {settings.concurrency.inflight_start} (`inflight_start`)" in DECIDES
    assert f"or at {FIRST_LIMIT_UNSET} while no objective is set" in DECIDES
    assert f"{settings.control.adaptive_headroom:g} times the service rate" in DECIDES
    assert f"less than {settings.rates.reserve_mid:.0%}".replace("%", " %") in DECIDES
    assert f"low at {settings.rates.reserve_low:.0%}".replace("%", " %") in DECIDES


def test_the_hysteresis_table_has_every_setting_and_its_default() -> None:
    table = dict(re.findall(r"^\| `(tier\w*|TIER\w*)` \| `(.+?)` \|", DECIDES, re.MULTILINE))
    assert table == {
        name if known.file_only else name.upper(): known.default_text
        for name, known in settings_table().items()
        if name.startswith("tier")
    }


def test_staleness_levels_match_the_page() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = 92
    assert throttle.control_state().telemetry is TelemetryState.STARTING
    throttle.tick(3)
    seen = []
    for age_s, step_s in [(2.0, 2.0), (3.0, 1.0), (16.5, 13.5), (30.0, 13.5), (30.1, 0.1)]:
        throttle.clock.advance(step_s)
        regime = throttle.control_state()
        seen.append((age_s, regime.telemetry.value, round(regime.factor, 2)))
    assert seen == [
        (2.0, "fresh", 0.4),
        (3.0, "late", 0.4),
        (16.5, "stale", 0.4),
        (30.0, "stale", 0.4),
        (30.1, "blind", 0.4),
    ]
    assert Throttle(Settings(gpu="none")).control_state().telemetry is TelemetryState.NONE
    rungs = re.findall(r"^\| [^|]+ \| `(\w+)` \|", DECIDES.partition("telemetry | factor")[2], re.MULTILINE)
    assert rungs[:6] == ["starting", "fresh", "late", "stale", "blind", "none"]


def test_without_utilization_as_on_mig_the_rates_stay() -> None:
    throttle = throttle_for_tests()
    throttle.gpu.utilization_pct = None
    regime = throttle.tick(6)
    assert (regime.telemetry, regime.factor) == (TelemetryState.BLIND, 1.0)


def test_every_status_and_every_field_is_explained() -> None:
    assert set(re.findall(r"^\| (\d{3}) \|", CLIENTS, re.MULTILINE)) == {
        str(code) for code in STATUS.values()
    }
    fields = CLIENTS.partition("## Fields")[2].partition("## When")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", fields, re.MULTILINE)) == set(EXPOSED_FIELDS)
    assert "expose_headers=EXPOSED_FIELDS" in CLIENTS


def test_every_reason_is_named_on_the_page() -> None:
    for reason in set(Reason) - {Reason.OK}:
        assert f"`{reason.value}:" in CLIENTS
    assert set(re.findall(r"^\| `(queue:\w+)` \|", CLIENTS, re.MULTILINE)) == _QUEUE_DETAIL_TEXTS.keys()


def test_adaptive_holds_a_stale_reduction_while_requests_wait() -> None:
    throttle = throttle_for_tests(policy="adaptive", inflight_max=1, slo_s=60)
    throttle.gpu.utilization_pct = 92
    permit, ticket = (throttle.try_admit(Demand(Priority.HIGH)) for _ in range(2))
    assert throttle.tick(3).factor == 0.4
    throttle.clock.advance(3.0)
    assert (throttle.control_state().telemetry, throttle.control_state().factor) == (TelemetryState.LATE, 0.4)
    throttle.clock.advance(0.1)
    assert (throttle.control_state().telemetry, throttle.control_state().factor) == (
        TelemetryState.STALE,
        0.4,
    )
    assert isinstance(permit, Permit)
    assert isinstance(ticket, Ticket)
    throttle.leave(ticket)
    permit.settle()
    throttle.clock.advance(2.1)
    assert throttle.control_state().factor == 1.0


def test_the_priorities_have_the_rates_of_the_page() -> None:
    printed = next(command.printed for command in commands() if command.words[1:] == ["tiers"])
    assert [priority.label for priority in Priority] == re.findall(r"high|mid|low", printed)[:3]
