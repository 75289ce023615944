"""The command line: output and exit status of each command."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from autoglm_throttle.settings import PREFIX, settings_table
from autoglm_throttle.settings.groups import GROUPS
from autoglm_throttle.types.identity import SHARED_KEY, CallerHasher
from tests.cli.configured import GOLDEN, SECRET, Run

BROKEN = {
    "WORKERS": "0",
    "GPU": f"vllm:ftp://me:{SECRET}@host",
    "KEY_SECRET": "short",
    "USER_LIMTI": SECRET,
    "TIERS": "90:0.4,85:0.7",
    "RESERVE_LOW": "0.8",
}


pytestmark = pytest.mark.usefixtures("configured")


FILE = {"CONFIG_FILE": "throttle.toml", "WORKERS": "4", "USER_LIMIT": "100/minute;5/second"}


SHARED = {
    "CONFIG_FILE": "shared.toml",
    "REDIS_URL": f"rediss+sentinel://throttle:{SECRET}@10.0.0.1,10.0.0.2:26380/main",
    "SERVICE": "llm",
    "REDIS_ON_ERROR": "deny",
    "REDIS_DEADLINE_S": "100ms",
    "FLEET": "true",
    "POLICY": "tiers",
    "WORKERS": "4",
}


ADAPTIVE = {
    "CONFIG_FILE": "adaptive.toml",
    "POLICY": "adaptive",
    "SLO_S": "10",
    "DEADLINE_HEADER": "x-deadline",
    "GPU_UNKNOWN": "last",
}


CLEAN = {
    "GPU": "none",
    "POLICY": "concurrency",
    "WORKERS": "1",
    "SLO_S": "5",
    "USER_LIMIT": "100/minute;5/second",
    "KEY_SECRET": SECRET,
}


CASES: dict[str, tuple[int, list[str], dict[str, str]]] = {
    "check_defaults": (0, ["check"], {}),
    "check_file": (0, ["check"], FILE | {"PRIORITY_HEADER_TRUST": "any"}),
    "check_broken": (1, ["check"], BROKEN),
    "show_defaults": (0, ["show"], {}),
    "show_file": (0, ["show"], FILE),
    "show_broken": (1, ["show"], BROKEN),
    "show_path_pattern": (0, ["show", "--path", "/payments/logs", "--method", "post"], FILE),
    "show_path_price": (0, ["show", "--path", "/v1/generate/", "--method", "POST"], FILE),
    "show_path_default": (0, ["show", "--path", "/v1/generate"], FILE),
    "show_path_exempt": (0, ["show", "--path", "/health"], FILE),
    "show_path_exempt_route": (0, ["show", "--path", "/status/7"], FILE),
    "show_path_options": (0, ["show", "--path", "/v1/generate", "--method", "OPTIONS"], FILE),
    "show_path_ambiguous": (0, ["show", "--path", "/status/..", "--method", "HEAD"], FILE),
    "show_quotas": (0, ["show", "--changed"], {"CONFIG_FILE": "quotas.toml", "GPU": "auto,vllm:http://h"}),
    "check_quotas": (0, ["check"], CLEAN | {"CONFIG_FILE": "quotas.toml"}),
    "tiers_defaults": (0, ["tiers"], {}),
    "tiers_workers": (0, ["tiers"], FILE),
    "check_adaptive": (0, ["check"], ADAPTIVE),
    "check_unread": (0, ["check"], ADAPTIVE | {"POLICY": "fixed", "DRY_RUN": "true"}),
    "check_contradictory": (1, ["check", "--config-file", "wrong.toml"], {"INFLIGHT_MAX": "8"}),
    "check_strict": (1, ["check", "--strict"], FILE),
    "check_strict_clean": (0, ["check", "--strict"], CLEAN),
    "show_adaptive": (0, ["show"], ADAPTIVE),
    "show_changed": (0, ["show", "--changed"], FILE),
    "show_changed_nothing": (0, ["show", "--changed"], {}),
    "check_shared": (0, ["check"], SHARED),
    "check_shared_broken": (
        1,
        ["check"],
        {
            "REDIS_URL": f"redis://:{SECRET}@host:0x",
            "SERVICE": "a:b",
            "FLEET_GPU": "true",
            "CONFIG_FILE": "slow.toml",
            "REDIS_QUEUE": "5",
        },
    ),
    "show_shared": (0, ["show"], SHARED),
    "tiers_literal": (0, ["tiers"], {"POLICY": "tiers"}),
    "tiers_adaptive": (0, ["tiers"], ADAPTIVE),
    "tiers_concurrency": (0, ["tiers"], {"POLICY": "concurrency", "INFLIGHT_MAX": "32", "DRY_RUN": "true"}),
    "tiers_pressure": (0, ["tiers"], {"POLICY": "tiers", "SIGNAL": "pressure"}),
    "nginx_literal": (0, ["nginx"], {"POLICY": "tiers", "NGINX_FLAGS_DIR": "/run/throttle"}),
    "nginx_fixed": (0, ["nginx", "--priority", "mid"], {"POLICY": "fixed", "RATE_MID_RPS": "10/m"}),
    "nginx_without_folder": (1, ["nginx"], {"POLICY": "tiers"}),
    "tiers_fixed": (0, ["tiers"], {"POLICY": "fixed", "RATE_HIGH_RPS": "10/m"}),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ["text", "json"])
def test_output_is_as_agreed(run: Run, name: str, form: str) -> None:
    """To agree to a change: UPDATE_GOLDEN=1 pytest tests/cli, then read the diff."""
    expected, argv, environ = CASES[name]
    status, out = run(*argv, "--format", form, **environ)
    assert status == expected
    if form == "json":
        json.loads(out)
    golden = GOLDEN / f"{name}.{'txt' if form == 'text' else 'json'}"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(out, "utf-8")
    assert out == golden.read_text("utf-8")


@pytest.mark.parametrize("name", settings_table())
def test_check_finds_a_wrong_value_of_each_setting(run: Run, name: str, tmp_path: Path) -> None:
    if settings_table()[name].file_only:
        (tmp_path / "wrong.toml").write_text(f'{name} = "?!"\n')
        status, out = run("check", CONFIG_FILE="wrong.toml")
        assert f"problem: wrong.toml:1: {name}: must be " in out
    else:
        status, out = run("check", **{name.upper(): "?!"})
        assert f"problem: {PREFIX}{name.upper()}: " in out
    assert status == 1


@pytest.mark.parametrize(
    "name", [name for name, known in settings_table().items() if known.file_only and "redis" in name]
)
def test_check_rejects_a_variable_that_moved(run: Run, name: str) -> None:
    status, out = run("check", **{name.upper(): settings_table()[name].default_text})
    assert status == 1
    assert out.startswith(f"problem: {PREFIX}{name.upper()}: is no environment variable any more\n")
    assert f"set {name} in the file that {PREFIX}CONFIG_FILE names" in out


def test_check_reports_a_source_without_its_package(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("check", GPU="nvml")[0] == 0
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    status, out = run("check", GPU="nvml")
    assert status == 1
    assert out.startswith("problem: AUTOGLM_THROTTLE_GPU: GPU=nvml needs the Python package nvidia-ml-py")


@pytest.mark.parametrize(
    ("signal", "gpu", "heading"),
    [
        ("auto", "none", "GPU utilization"),
        ("auto", "vllm:http://h", "pressure"),
        ("utilization", "vllm:http://h", "GPU utilization"),
        ("pressure", "none", "pressure"),
    ],
)
def test_tiers_heading_names_the_signal(run: Run, signal: str, gpu: str, heading: str) -> None:
    assert run("tiers", SIGNAL=signal, GPU=gpu)[1].splitlines()[1].startswith(heading)


def test_an_env_file_and_a_file_on_the_command_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "prod.env").write_text("AUTOGLM_THROTTLE_WORKERS=7\n")
    status, out = run("show", "--env-file", "prod.env", "--config-file", "throttle.toml", "--format", "json")
    assert status == 0
    settings = {row["name"]: row for row in json.loads(out)["settings"]}
    assert (settings["workers"]["value"], settings["workers"]["source"]) == ("7", "env_file")
    assert settings["workers"]["place"] == "AUTOGLM_THROTTLE_WORKERS in prod.env"
    assert settings["user_limit_low"]["source"] == "config_file"
    assert settings["config_file"]["source"] == "code"
    assert settings["key_secret"]["value"] == "********"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("slo_s", "AUTOGLM_THROTTLE_SLO_S"),
        ("workers", "WEB_CONCURRENCY"),
        ("period_s", "throttle.toml:2"),
        ("config_file", "argument"),
        ("policy", "default"),
    ],
)
def test_show_names_the_place_of_a_value(
    run: Run, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    _, out = run("show", "--config-file", "throttle.toml", "--format", "json", SLO_S="3")
    rows = {row["name"]: row for row in json.loads(out)["settings"]}
    assert rows[name]["place"] == place
    _, out = run("show", "--config-file", "throttle.toml")
    variable = settings_table()[name].variable
    assert re.search(rf"^{variable} .* {re.escape(place)}$", out, re.MULTILINE)


def test_quotas_come_from_the_routes_that_turn_them_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "quotas.toml").write_text(
        'burst_s = 2\n[[routes]]\npattern = "/v1/*"\nresource_policy = {gpu_memory_ratio = 0.5}\n'
    )
    _, out = run("show", "--changed", "--format", "json", CONFIG_FILE="quotas.toml")
    rows = {row["name"]: row["place"] for row in json.loads(out)["settings"]}
    assert rows == {
        "burst_s": "quotas.toml:1",
        "quotas": "quotas.toml:2",
        "config_file": "AUTOGLM_THROTTLE_CONFIG_FILE",
    }


def test_show_has_a_heading_for_each_group(run: Run) -> None:
    _, out = run("show")
    assert re.findall(r"^(\w+):$", out, re.MULTILINE) == list(GROUPS)


def test_show_of_a_request_cannot_be_reduced_to_changes(run: Run) -> None:
    with pytest.raises(SystemExit) as caught:
        run("show", "--changed", "--path", "/x")
    assert caught.value.code == 2


def test_keys_of_the_documents_are_stable(run: Run) -> None:
    _, out = run("show", "--format", "json", **FILE)
    document = json.loads(out)
    assert list(document) == ["settings", "routes", "plans", "guards", "quota_basis"]
    assert {tuple(row) for row in document["settings"]} == {
        ("name", "group", "variable", "value", "unit", "default", "source", "place")
    }
    assert {tuple(row) for row in document["guards"]} == {("name", "source", "place", "figures")}
    assert document["routes"][0]["resource_policy"] is None
    _, out = run("tiers", "--format", "json", **FILE)
    assert list(json.loads(out)) == ["policy", "signal", "workers", "samples", "bands", "user_limits"]
    _, out = run("check", "--format", "json", **FILE)
    assert list(json.loads(out)) == ["ok", "problems", "warnings"]


def test_the_resource_policy_of_a_request(run: Run, tmp_path: Path) -> None:
    """Fields that the route omits come from the service."""
    (tmp_path / "quotas.toml").write_text(
        'compute_priority = "low"\n[[routes]]\npattern = "/v1/*"\n'
        'resource_policy = {gpu_memory_ratio = 0.5, precision_hint = "int8"}\n'
    )
    given = {"CONFIG_FILE": "quotas.toml", "QUOTAS": "true"}
    _, out = run("show", "--path", "/v1/x", **given)
    assert re.search(
        r"^resource_policy +precision_hint int8; gpu_memory_ratio 0\.5; compute_priority low$",
        out,
        re.MULTILINE,
    )
    _, out = run("show", "--format", "json", **given)
    assert json.loads(out)["routes"][0]["resource_policy"] == {
        "precision_hint": "int8",
        "gpu_memory_ratio": "0.5",
    }
    _, out = run("show", "--path", "/other", "--format", "json", **given)
    assert json.loads(out)["resource_policy"]["compute_priority"] == "low"
    _, out = run("show", "--path", "/v1/x", "--format", "json", **given | {"QUOTAS": "false"})
    assert json.loads(out)["resource_policy"] is None


MARKED = """\
from autoglm_throttle import exempt, mark

class Route:
    def __init__(self, path, endpoint):
        self.path, self.endpoint, self.methods = path, endpoint, {"GET"}

@mark(priority="low", cost=3)
def logs(): ...

@exempt
def ping(): ...

class App:
    routes = [Route("/logs/{day}", logs), Route("/ping", ping), Route("/payments/x", logs)]

app = App()
"""


@pytest.fixture
def marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "marked_service.py").write_text(MARKED)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "marked_service", raising=False)
    return "marked_service:app"


def test_marks_of_an_app_count(run: Run, marked: str) -> None:
    _, out = run("show", "--path", "/logs/monday", "--app", marked, "--format", "json")
    document = json.loads(out)
    assert (document["priority"], document["cost"]) == ("low", 3.0)
    assert document["reason"] == "a mark on its endpoint"
    _, out = run("show", "--path", "/ping", "--app", "marked_service", "--format", "json")
    assert json.loads(out)["exempt"] is True


def test_configuration_wins_over_marks(run: Run, marked: str) -> None:
    _, out = run("show", "--path", "/payments/x", "--app", marked, "--format", "json", **FILE)
    assert json.loads(out)["policy"] == "/payments/*"


@pytest.mark.parametrize("app", ["no_such_module:app", "marked_service:nothing", ":app"])
def test_an_app_that_cannot_be_imported_is_a_problem(run: Run, marked: str, app: str) -> None:
    status, out = run("show", "--path", "/x", "--app", app)
    assert status == 1
    assert out.startswith("problem: --app: cannot be imported: ")


@pytest.mark.parametrize(
    ("argv", "identity", "kind", "counted"),
    [
        ([], "header:x-api-key", "key", "sk-live-1"),
        ([], "bearer", "key", "sk-live-1"),
        ([], "my.module:f", "user", "sk-live-1"),
        (["--kind", "user"], "bearer", "user", "sk-live-1"),
        (["--kind", "address"], "bearer", "address", "2001:db8::"),
        ([], "address", "address", "2001:db8::"),
    ],
)
def test_identity(run: Run, argv: list[str], identity: str, kind: str, counted: str) -> None:
    stdin = "2001:db8::7\n" if kind == "address" else "sk-live-1\r\n"
    status, out = run("identity", *argv, stdin=stdin, KEY_SECRET=SECRET, IDENTITY=identity)
    assert (status, out) == (0, CallerHasher(SECRET.encode()).hash(kind, counted) + "\n")
    assert re.fullmatch(r"[0-9a-f]{16}\n", out)


def test_identity_uses_the_shared_key_with_a_store(run: Run) -> None:
    status, out = run("identity", stdin="10.0.0.1", REDIS_URL="redis://localhost")
    assert (status, out) == (0, CallerHasher(SHARED_KEY).hash("address", "10.0.0.1") + "\n")


def test_identity_as_json(run: Run) -> None:
    _, out = run("identity", "--format", "json", stdin="10.0.0.1", KEY_SECRET=SECRET)
    assert json.loads(out)["kind"] == "address"


def test_identity_needs_a_secret_and_a_value(run: Run) -> None:
    status, out = run("identity", stdin="x")
    assert (status, "KEY_SECRET: is not set" in out) == (1, True)
    status, out = run("identity", stdin="\n", KEY_SECRET=SECRET)
    assert (status, "standard input: is empty" in out) == (1, True)
