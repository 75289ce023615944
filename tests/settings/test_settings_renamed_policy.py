"""``POLICY=gate`` is an error that names the new value, wherever it is set."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoglm_throttle.settings import ConfigError, Problem, Settings
from autoglm_throttle.types import Policy

VARIABLE = "AUTOGLM_THROTTLE_POLICY"


def from_environment(folder: Path, value: str) -> Settings:
    return Settings.from_env({VARIABLE: value})


def from_env_file(folder: Path, value: str) -> Settings:
    (folder / "prod.env").write_text(f"{VARIABLE}={value}\n")
    return Settings.from_env({}, folder / "prod.env")


def from_toml(folder: Path, value: str) -> Settings:
    (folder / "throttle.toml").write_text(f'policy = "{value}"\n')
    return Settings.from_env({"AUTOGLM_THROTTLE_CONFIG_FILE": str(folder / "throttle.toml")})


def from_code(folder: Path, value: str) -> Settings:
    values: dict[str, Any] = {"policy": value}
    return Settings(**values)


SOURCES = [from_environment, from_env_file, from_toml, from_code]


@pytest.mark.parametrize(
    ("source", "variable"),
    [
        (from_environment, VARIABLE),
        (from_env_file, f"{VARIABLE} in prod.env"),
        (from_toml, "throttle.toml:1: policy"),
        (from_code, "policy"),
    ],
)
@pytest.mark.parametrize("value", ["gate", "GATE"])
def test_policy_gate_names_the_new_value(
    source: Callable[[Path, str], Settings], variable: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        source(tmp_path, value)
    (problem,) = caught.value.problems
    message = f"must be one of adaptive, tiers, concurrency, fixed, not {value!r}"
    assert problem == Problem(variable, message, "gate is now concurrency")


@pytest.mark.parametrize("source", SOURCES)
def test_policy_concurrency_is_read(source: Callable[[Path, str], Settings], tmp_path: Path) -> None:
    assert source(tmp_path, "concurrency").control.policy is Policy.CONCURRENCY
