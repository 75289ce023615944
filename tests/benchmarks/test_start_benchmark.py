"""The benchmark of the start: its configuration files, its arithmetic, its table, its driver."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import start
from benchmarks.callgrind import ROOT, environ, output

pytestmark = pytest.mark.slow


def driven(mode: str, folder: Path, *files: str, **variables: str) -> str:
    command = [sys.executable, "-P", str(start.DRIVER), mode, *files]
    return output(command, environ(ROOT, **variables), folder)


@pytest.mark.parametrize("keys", start.KEYS.values(), ids=start.KEYS)
def test_config_file_has_a_table_for_each_route(keys: tuple[str, ...]) -> None:
    routes = tomllib.loads(start.config_file(3, keys))["routes"]
    assert [route["pattern"] for route in routes] == ["/v1/route-0", "/v1/route-1", "/v1/route-2"]
    assert {len(route) for route in routes} == {1 + len(keys)}


def test_first_profile_counts_only_dependencies() -> None:
    figures = start.of_start([90, 40], [90, 20, 10, 7, 3])
    assert figures["dependencies"] == 90
    assert figures["start"] == sum(figures[step] for step in start.STEPS)


def test_missing_profile_of_a_start_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="2 and 4 profiles, 2 and 5 expected"):
        start.of_start([1, 2], [1, 2, 3, 4])


def test_growth_leaves_out_the_time_without_routes() -> None:
    assert start.growth({"0": 0.5, "500": 0.6, "1000": 0.7, "2000": 0.9}) == pytest.approx(2.0)
    assert start.growth({"0": 0.5, "500": 0.6, "1000": 0.9, "2000": 2.1}) == pytest.approx(4.0)


def test_start_table_shows_ratio_and_growth() -> None:
    now: start.Figures = {"instructions": {"start": 1200}, "check": {"0": 1, "1000": 2, "2000": 3}}
    before: start.Figures = {"instructions": {"start": 2000}, "check": {"0": 1, "1000": 2, "2000": 5}}
    lines = [line.split() for line in start.table(now, before).splitlines()]
    assert lines[1] == ["start", "1,200", "2,000", "0.600"]
    assert lines[-2:] == [
        ["2,000", "routes", "3.000", "5.000", "0.600"],
        ["growth", "(2", "is", "linear)", "2.00", "4.00"],
    ]
    assert start.table(now, None).splitlines()[1].split() == ["start", "1,200"]


def test_driver_lists_only_modules_of_others(tmp_path: Path) -> None:
    names = driven("modules", tmp_path).split()
    assert {"pydantic", "asyncio"} <= set(names)
    assert not [name for name in names if name.startswith("autoglm_throttle")]


@pytest.mark.parametrize("mode", ["start", "steps"])
def test_driver_skips_names_that_cannot_be_imported(mode: str, tmp_path: Path) -> None:
    (tmp_path / "modules").write_text("json\nno_module_of_this_name\n")
    assert driven(mode, tmp_path, "modules") == ""


@pytest.mark.parametrize("mode", start.COMMANDS)
def test_driver_prints_cpu_seconds_with_routes(mode: str, tmp_path: Path) -> None:
    file = tmp_path / "throttle.toml"
    file.write_text(start.config_file(2, start.KEYS["all keys"]))
    assert float(driven(mode, tmp_path, AUTOGLM_THROTTLE_CONFIG_FILE=str(file))) > 0.0


def test_driver_fails_when_the_file_has_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "throttle.toml"
    file.write_text("[[routes]]\n")
    with pytest.raises(RuntimeError, match="failed"):
        driven("check", tmp_path, AUTOGLM_THROTTLE_CONFIG_FILE=str(file))
