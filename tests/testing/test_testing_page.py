"""Every block of the page 'Testing your app' runs as it is printed."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

PAGE = Path(__file__).parents[2] / "docs" / "testing-your-app.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_every_block_passes(pytester: pytest.Pytester) -> None:
    for number, block in enumerate(BLOCKS):
        named = re.match(r"# (\w+\.py)\n", block)
        pytester.path.joinpath(named[1] if named else f"test_block_{number}.py").write_text(block)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    written = sum(block.count("\ndef test_") for block in BLOCKS)
    result.assert_outcomes(passed=written + 3)  # one is parametrized with four cases


def test_every_name_of_the_kit_stands_on_the_page() -> None:
    from autoglm_throttle import testing

    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in testing.__all__ if name not in page] == ["ManualThrottle"]
