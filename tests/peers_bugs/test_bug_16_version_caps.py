"""Bug 16: upper bounds on dependencies that fight the application's own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def check(requirements: list[str]) -> None:
    capped = [text for text in requirements if re.search(r"<|==|~=|!=", text.partition(";")[0])]
    assert not capped, f"capped: {capped}"


def test_no_dependency_has_an_upper_bound() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    check([*project["dependencies"], *(text for extra in extras for text in extra)])
    check([project["requires-python"]])


@pytest.mark.parametrize("planted", ["redis<8", "redis>=4,<8", "redis~=5.0", "redis==5.0"])
def test_planted_cap_is_found(planted: str) -> None:
    with pytest.raises(AssertionError, match="capped"):
        check(["anyio>=4.4", planted])
