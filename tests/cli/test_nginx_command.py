"""The command ``nginx``: rates, parts, arguments, and its check by a real nginx."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from autoglm_throttle import Priority, Settings
from autoglm_throttle.cli.nginx import EdgeTier, edge_tiers, find_nginx
from tests.cli.configured import Run

pytestmark = pytest.mark.usefixtures("configured")
FLAGS = ("--flags-dir", "/run/throttle")
PATHS = (
    *("/", "/status", "/status/", "/status/a/b", "/statuses", "/a/status"),
    *("/users/7/photo.png", "/users/7/photoxpng", "/users/7/8/photo.png", "/v1/chat"),
)


@pytest.mark.parametrize("priority", ["high", "mid", "low"])
def test_rates_equal_those_of_the_tiers_table(run: Run, priority: str) -> None:
    given = {"POLICY": "tiers", "TIERS": "80:0.75,95:0.1", "RATE_LOW_RPS": "7", "WORKERS": "4"}
    _, table = run("tiers", "--format", "json", **given)
    _, edge = run("nginx", "--format", "json", "--priority", priority, *FLAGS)
    expected = [band["rate_rps"][priority] for band in json.loads(table)["bands"]]
    document = json.loads(edge)
    assert [tier["rate_rps"] for tier in document["tiers"]] == expected
    zones = re.findall(r"zone=throttle_\w+:10m rate=(\d+)r/([sm])", document["configuration"])
    assert [int(number) / {"s": 1, "m": 60}[unit] for number, unit in zones] == expected
    assert document["flags_dir"] == "/run/throttle"


@pytest.mark.parametrize(
    ("rate_rps", "rate", "burst"),
    [
        (1000.0, "1000r/s", 100),
        (1.0, "1r/s", 1),
        (23.1, "1386r/m", 2),
        (0.7, "42r/m", 1),
        (0.0101, "1r/m", 1),
        (0.02, "2r/m", 1),
        (10 / 60, "10r/m", 1),
        (1000 * 0.57, "570r/s", 57),
        (1_000_000.0, "1000000r/s", 100_000),
    ],
)
def test_rate_is_a_whole_number_of_nginx(rate_rps: float, rate: str, burst: int) -> None:
    tier = EdgeTier("70", 0.7, rate_rps)
    assert (tier.rate, tier.burst) == (rate, burst)


def test_tiers_without_a_lowest_of_zero_reject_by_rate_alone(run: Run) -> None:
    _, text = run("nginx", *FLAGS, TIERS="85:0.5")
    assert "return 418" not in text
    assert [tier.name for tier in edge_tiers(Settings(tiers="85:0.5"), Priority.HIGH)] == ["100", "50"]


def test_parts_together_are_the_whole(run: Run) -> None:
    whole, *parts = (run("nginx", *FLAGS, "--part", part)[1] for part in ("all", "http", "server"))
    lines = [line.strip() for line in whole.splitlines()]
    for part in parts:
        assert {line.strip() for line in part.splitlines()} <= set(lines)
    assert {*lines} - {line.strip() for part in parts for line in part.splitlines()} == {
        "",
        "server {",
        "listen 80;",
    }


def test_settings_reach_the_configuration(run: Run) -> None:
    _, text = run(
        *("nginx", *FLAGS, "--listen", "[::1]:8080", "--upstream", "10.0.0.1:1", "--upstream", "unix:/a"),
        EXEMPT_PATHS='/a"b\\c',
        DRY_RUN="true",
    )
    for line in ("listen [::1]:8080;", "server 10.0.0.1:1;", "server unix:/a;", "limit_req_dry_run on;"):
        assert line in text
    assert 'location = "/a\\"b\\\\c" {' in text
    assert "(?<throttle_ipv6>.{8}).{8}$" in text


def test_names_of_two_services_differ(run: Run) -> None:
    texts = [run("nginx", *FLAGS, "--name", name)[1] for name in ("chat", "images_2")]
    names = [
        set(re.findall(r"[$@:/= ](\w+_(?:address|100|service|tier|closed|connection))\b", text))
        for text in texts
    ]
    assert len(names[0]) >= 6
    assert not names[0] & names[1]
    assert find_nginx() is None or run("nginx", *FLAGS, "--check", "--name", "images_2")[0] == 0


def test_exempt_routes_of_the_settings_pass(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "throttle.toml"
    exempt = ("/status/*", "/users/{id}/photo.png", "/")
    file.write_text(
        "".join(f'[[routes]]\npattern = "{pattern}"\nexempt = true\n' for pattern in exempt)
        + '[[routes]]\npattern = "/v1/*"\npriority = "low"\n'
    )
    _, text = run("nginx", *FLAGS, CONFIG_FILE=str(file))
    found = re.findall(r'location ~ "(.*)" \{ proxy_pass http://throttle_service; \}', text)
    patterns = [pattern.replace("\\\\", "\\") for pattern in found]
    matching = [[path for path in PATHS if re.search(pattern, path)] for pattern in patterns]
    assert find_nginx() is None or run("nginx", *FLAGS, "--check", CONFIG_FILE=str(file))[0] == 0
    assert matching == [["/status", "/status/", "/status/a/b"], ["/users/7/photo.png"], ["/"]]


@pytest.mark.parametrize(
    "words",
    [
        ["--name", "a-b"],
        ["--name", ""],
        ["--flags-dir", "relative"],
        ["--flags-dir", "/run/a;b"],
        ["--upstream", "host"],
        ["--upstream", "host:70000"],
        ["--upstream", "unix:/a b"],
        ["--listen", "0"],
        ["--listen", "80;"],
        ["--priority", "urgent"],
    ],
)
def test_wrong_argument_names_the_allowed_ones(run: Run, words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("nginx", *words)
    assert caught.value.code == 2


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"POLICY": "fixed", "RATE_HIGH_RPS": "0.001"},
        {"TIERS": "50:33.3%,70:0.001", "RATE_HIGH_RPS": "1000000", "DRY_RUN": "1"},
        {"EXEMPT_PATHS": '/a"b\\c;{}$x'},
        {"TIERS": "85:0.0000001,95:0"},
    ],
)
def test_nginx_accepts_the_configuration(run: Run, environ: dict[str, str]) -> None:
    status, out = run("nginx", *FLAGS, "--check", **environ)
    assert (status, out) == (0, f"ok: {find_nginx()} accepts the configuration\n")


@pytest.mark.skipif(find_nginx() is None, reason="nginx is not installed")
def test_check_prints_the_error_of_nginx(run: Run) -> None:
    status, out = run("nginx", *FLAGS, "--check", "--upstream", "[::::]:80")
    assert status == 1
    assert "invalid IPv6 address in upstream" in out


def test_check_without_nginx_is_no_success(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert run("nginx", *FLAGS, "--check") == (
        1,
        "fail: nginx is not installed here: the configuration was not checked\n",
    )


@pytest.mark.parametrize("fault", [OSError("exec"), subprocess.TimeoutExpired("nginx", 60)])
def test_check_that_cannot_run_is_a_failure(
    run: Run, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr("shutil.which", lambda *_, **__: "/usr/sbin/nginx")
    monkeypatch.setattr("subprocess.run", fails)
    status, out = run("nginx", *FLAGS, "--check")
    assert status == 1
    assert out.startswith("fail: /usr/sbin/nginx: ")


def test_check_finds_a_folder_that_cannot_be_written(run: Run) -> None:
    status, out = run("check", NGINX_FLAGS_DIR="/proc/self/throttle/flags")
    assert status == 1
    assert "AUTOGLM_THROTTLE_NGINX_FLAGS_DIR: /proc/self/throttle/flags does not exist" in out


def test_flags_need_a_system_with_locks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoglm_throttle.settings.checks.find_spec", lambda name: None)
    status, out = run("check", NGINX_FLAGS_DIR="/run/throttle")
    assert status == 1
    assert "AUTOGLM_THROTTLE_NGINX_FLAGS_DIR: needs a system with file locks" in out
