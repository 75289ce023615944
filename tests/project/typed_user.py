"""Check with mypy and pyright that typing errors of users are reported, and right arguments are not.

Each line of `WRONG` has one typo in a name or a value; the lines of `RIGHT` have none. Both are checked as
files of a user, with the strictest modes and without the configuration of this project.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BIN: Final = Path(sys.executable).parent

IMPORTS: Final = """\
from autoglm_throttle import BreakerSettings, GuardPolicy, PlanPolicy, RoutePolicy, Settings
from autoglm_throttle.testing import throttle_for_tests
"""

WRONG: Final = (
    "Settings(slo=2.0)",
    "Settings(policy='adaptve')",
    "Settings(workers='four')",
    "Settings(rate_high_rsp=10)",
    "Settings(user_limits='5/s')",
    "Settings(headers='itef')",
    "Settings(dry_run='ture')",
    "Settings.from_env(redis_on_eror='local')",
    "Settings.from_env(redis_on_error='locl')",
    "Settings.from_env(breaker_mode='enforced')",
    "RoutePolicy('/v1/*', prioritty='high')",
    "RoutePolicy('/v1/*', priority='hihg')",
    "RoutePolicy('/v1/*', cost='cheap')",
    "PlanPolicy('gold', member=['07f3a9c2d4e5b617'])",
    "GuardPolicy('db', criticality='noncore')",
    "GuardPolicy('db', failure=3)",
    "BreakerSettings(open_secs=3)",
    "BreakerSettings(trip={'consecutiv'})",
    "throttle_for_tests(polcy='tiers')",
    "throttle_for_tests(gpu_unknown='opne')",
)

RIGHT: Final = (
    "Settings(slo_s=2.0, policy='adaptive', workers=4, rate_high_rps='6000/m', user_limit='5/s')",
    "Settings(headers='ietf', dry_run=True, tiers=[(80, 0.5)], gpu=['auto', 'vllm:http://127.0.0.1:8000'])",
    "Settings(redis_url=None, key_secret='0123456789abcdef', exempt_paths=['/health'], period_s='250ms')",
    "Settings(routes=[RoutePolicy('/v1/*')], plans=[PlanPolicy('gold')], guards=[GuardPolicy('db')])",
    "Settings(routes=[{'pattern': '/v1/*'}], plans={'gold': {}}, guards={'db': BreakerSettings()})",
    "Settings(resource_policy={'precision_hint': 'fp16,int8', 'gpu_memory_ratio': '60%'})",
    "Settings.from_env(redis_on_error='local', breaker_mode='enforce', priority_default='high')",
    "Settings.from_env({}, None, breaker_trip=['consecutive', 'failure_rate'], breaker_ramp=[0.1, 0.5])",
    "RoutePolicy('/v1/*', priority='high', cost=2, methods=['POST'], user_limit='off')",
    "RoutePolicy('/v1/*', slo_s='30s', name='chat', resource_policy={'gpu_memory_ratio': 0.5})",
    "RoutePolicy('/health', exempt=True, priority=None)",
    "PlanPolicy('gold', members=['07f3a9c2d4e5b617'], user_limit='1000/minute', priority='high')",
    "GuardPolicy('db', criticality='non_core', shed_above='85%', max_stale_s='5m')",
    "GuardPolicy('db', failures=3, trip='consecutive,failure_rate', open_s=None)",
    "BreakerSettings(open_s=3, timeout_s='500ms', mode='metrics_only', on_429='open')",
    "BreakerSettings(trip={'consecutive'}, ramp='10%,50%', slow_call_s=1.5, slow_is='separate')",
    "BreakerSettings().open_s + BreakerSettings().lease_s",
    "throttle_for_tests(policy='tiers', user_limit='2/minute')",
    "throttle_for_tests(gpu_unknown='open', breaker_failures=3)",
    "Settings().rates.rate_high_rps + Settings().breaker.open_s",
)


FIRST: Final = IMPORTS.count("\n") + 2
"""Number of the line of the first value."""

Place = tuple[str, int]
"""Name of a file and number of a line."""


def text_of(lines: tuple[str, ...]) -> str:
    """Format a file with one value a line, behind the imports; all names are used."""
    names = "BreakerSettings, GuardPolicy, PlanPolicy, RoutePolicy, Settings, throttle_for_tests"
    values = (f"VALUE_{number} = {line}\n" for number, line in enumerate(lines))
    return f"{IMPORTS}print({names})\n" + "".join(values)


def mypy_places(folder: Path) -> set[Place]:
    """Return the lines that mypy reports."""
    command = [str(BIN / "mypy"), "--strict", "--config-file=", f"--python-executable={sys.executable}"]
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'user'}"
    done = run([*command, cache, "--no-error-summary", *NAMES], folder)
    return {(name, int(line)) for name, line in re.findall(r"(?m)^(\w+\.py):(\d+): error:", done)}


def pyright_places(folder: Path) -> set[Place]:
    """Return the lines that pyright reports, as errors or as warnings."""
    command = [str(BIN / "basedpyright"), "--outputjson", f"--pythonpath={sys.executable}"]
    found = json.loads(run([*command, *NAMES], folder))["generalDiagnostics"]
    return {(Path(part["file"]).name, part["range"]["start"]["line"] + 1) for part in found}


def run(command: list[str], folder: Path) -> str:
    """Return the output of a checker, which ends with 1 if it reports an error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        sys.exit(f"{command[0]} fails: {done.stdout}{done.stderr}")
    return done.stdout


FILES: Final[Mapping[str, tuple[str, ...]]] = {"wrong.py": WRONG, "right.py": RIGHT}
NAMES: Final = list(FILES)
CHECKERS: Final[Mapping[str, Callable[[Path], set[Place]]]] = {
    "mypy": mypy_places,
    "pyright": pyright_places,
}


def faults(checkers: Mapping[str, Callable[[Path], set[Place]]] = CHECKERS) -> list[str]:
    """Return the wrong lines without a report, and the right ones with one, for each checker."""
    expected = {("wrong.py", FIRST + number) for number in range(len(WRONG))}
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, lines in FILES.items():
            (folder / file).write_text(text_of(lines))
        for checker, places in checkers.items():
            for file, line in sorted(places(folder) ^ expected):
                verb = "reports" if (file, line) not in expected else "does not report"
                found.append(f"{checker} {verb}: {text_of(FILES[file]).splitlines()[line - 1]}")
    return found


def main() -> None:
    """Check both files, and leave with 1 if something is wrong."""
    found = faults()
    print("\n".join(found) or f"{' and '.join(CHECKERS)} report {len(WRONG)} typing errors of {len(WRONG)}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
