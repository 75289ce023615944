"""The files of examples/deploy are valid, and agree with each other, with the example and its settings."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autoglm_throttle import ConfigError, Settings
from autoglm_throttle.settings import PREFIX
from examples.inference_service import app
from tests.examples.deploy_schemas import SCHEMAS
from tests.examples.deployed import FOLDER, KEY, ROOT, environment, instructions, interpolated, manifest, unit

OTHERS = {
    *("Dockerfile", "Dockerfile.dockerignore", "vllm/Dockerfile"),
    "systemd/inference.service",
}
KUBERNETES = [name for name in SCHEMAS if name.startswith("kubernetes/")]
COMPOSE = [name for name in SCHEMAS if "compose" in name]
GIVEN = {"KEY_SECRET": KEY, "MODEL": "model"}


def test_every_file_has_its_schema_or_test() -> None:
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert files == SCHEMAS.keys() | OTHERS


@pytest.mark.parametrize("name", SCHEMAS)
def test_file_is_valid(name: str) -> None:
    jsonschema.validate(manifest(name), SCHEMAS[name])


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a document, which may be changed while they are yielded."""
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield value
    for part in parts:
        yield from objects(part)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_finds_a_misspelt_key_in_each_object(name: str) -> None:
    document, schema = manifest(name), jsonschema.Draft202012Validator(SCHEMAS[name])
    for part in objects(document):
        assert schema.is_valid(document)
        part["misspelt key"] = 1
        assert not schema.is_valid(document), part
        del part["misspelt key"]


@pytest.mark.parametrize("name", COMPOSE)
def test_compose_names_services_and_files_that_exist(name: str) -> None:
    services = manifest(name)["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= services.keys()
        for volume in service.get("volumes", ()):
            assert (FOLDER / name).parent.joinpath(volume.split(":")[0]).is_file(), volume
        if "build" in service:
            context = ((FOLDER / name).parent / service["build"]["context"]).resolve()
            assert context == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()
        for word, condition in service.get("depends_on", {}).items():
            assert condition["condition"] != "service_healthy" or "healthcheck" in services[word]


@pytest.mark.parametrize(("name", "service"), [("compose.yaml", "inference"), ("vllm/compose.yaml", "vllm")])
def test_settings_of_compose_are_valid(name: str, service: str) -> None:
    settings = Settings.from_env(environment(name, service, GIVEN))
    assert settings.store.redis_url is not None
    with pytest.raises(KeyError, match="KEY_SECRET"):
        environment(name, service, {"MODEL": "model"})


def test_gpus_are_read_where_they_are_reserved() -> None:
    assert environment("compose.gpu.yaml", "inference", {}) == {f"{PREFIX}GPU": "auto"}
    assert interpolated("${A:-b}", {"A": "c"}) == "c"


def test_scrape_and_dashboard_lead_to_the_service() -> None:
    services = manifest("compose.yaml")["services"]
    (job,) = manifest("prometheus.yml")["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert port in services[host]["ports"][0]
    mounts = {volume.split(":")[1] for volume in services["grafana"]["volumes"]}
    (provider,) = manifest("grafana/dashboards.yaml")["providers"]
    assert any(mount.startswith(f"{provider['options']['path']}/") for mount in mounts)
    (source,) = manifest("grafana/datasources.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert any("grafana.json" in mount or "autoglm-throttle.json" in mount for mount in mounts)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
def test_promtool_accepts_the_configuration(tmp_path: Path) -> None:
    for volume in manifest("compose.yaml")["services"]["prometheus"]["volumes"]:
        source, target, _ = volume.split(":")
        shutil.copy(FOLDER / source, tmp_path / Path(target).name)
    command = ["promtool", "check", "config", "prometheus.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def deployment() -> Any:
    return manifest("kubernetes/deployment.yaml")["spec"]


def container() -> Any:
    (one,) = deployment()["template"]["spec"]["containers"]
    return one


def test_resources_of_kubernetes_belong_together() -> None:
    documents = [manifest(name) for name in KUBERNETES]
    assert {document["metadata"]["name"] for document in documents} == {"inference"}
    labels = deployment()["template"]["metadata"]["labels"]
    assert deployment()["selector"]["matchLabels"] == labels
    assert manifest("kubernetes/service.yaml")["spec"]["selector"] == labels
    assert manifest("kubernetes/pod-disruption-budget.yaml")["spec"]["selector"]["matchLabels"] == labels
    (port,) = container()["ports"]
    (served,) = manifest("kubernetes/service.yaml")["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    for name in ("keda-scaledobject.yaml", "hpa-external.yaml"):
        target = manifest(f"../autoscale/{name}")["spec"]["scaleTargetRef"]
        assert target["name"] == "inference"
        assert target.get("kind", "Deployment") == "Deployment"
    assert "replicas" not in deployment(), "an autoscaler sets them"


def test_settings_of_the_deployment_are_valid() -> None:
    secret = manifest("kubernetes/secret.yaml")["stringData"]
    environ = {}
    for one in container()["env"]:
        source = one.get("valueFrom", {}).get("secretKeyRef")
        environ[one["name"]] = one["value"] if source is None else secret[source["key"]]
    with pytest.raises(ConfigError) as caught:
        Settings.from_env(environ)
    problems = {problem.variable for problem in caught.value.problems}
    assert problems == {f"{PREFIX}KEY_SECRET"}, "the secret must be replaced"
    settings = Settings.from_env({**environ, f"{PREFIX}KEY_SECRET": KEY})
    assert settings.fleet.fleet


def test_probes_ask_paths_that_the_service_exempts() -> None:
    paths = {getattr(route, "path", "") for route in app.routes}
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        asked = container()[probe]["httpGet"]
        assert asked["path"].rstrip("/") in paths
        assert asked["port"] == container()["ports"][0]["name"]
    assert "/ready" in manifest("compose.yaml")["services"]["inference"]["healthcheck"]["test"][-1]


def test_readiness_is_not_asked_more_slowly_than_the_grace_period() -> None:
    probe, pod = container()["readinessProbe"], deployment()["template"]["spec"]
    removed_s = probe["periodSeconds"] * probe["failureThreshold"]
    (_, pause_s) = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert removed_s <= int(pause_s) < pod["terminationGracePeriodSeconds"]


def test_dockerfile_copies_and_installs_what_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in ("Dockerfile", "vllm/Dockerfile"):
        steps = instructions(name)
        for source in (word for key, rest in steps if key == "COPY" for word in rest.split()[:-1]):
            assert (ROOT / source).exists(), source
        installed = next(rest for key, rest in steps if key == "RUN" and "pip install" in rest)
        (named,) = re.findall(r'"\.\[([\w,]+)\]"', installed)
        assert set(named.split(",")) <= extras.keys()
    command = json.loads(dict(instructions("Dockerfile"))["CMD"])
    assert command == manifest("compose.yaml")["services"]["inference"]["command"]
    kept = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    copied = {word for key, rest in instructions("Dockerfile") if key == "COPY" for word in rest.split()[:-1]}
    assert {word[1:] for word in kept if word.startswith("!")} == copied


def test_vllm_starts_with_the_flag_of_its_page() -> None:
    words = manifest("vllm/compose.yaml")["services"]["vllm"]["command"]
    page = (ROOT / "docs" / "vllm.md").read_text()
    where = words.index("--middleware")
    assert f"vllm serve MODEL --middleware {words[where + 1]}" in page
    module, _, name = words[where + 1].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    where = words.index("--shutdown-timeout")
    assert f"`--shutdown-timeout {words[where + 1]}`" in page


def test_unit_of_systemd_has_known_keys() -> None:
    keys = {
        section: {key for key, _ in lines} for section, lines in unit("systemd/inference.service").items()
    }
    assert keys["Unit"] == {"Description", "Wants", "After"}
    assert keys["Install"] == {"WantedBy"}
    assert keys["Service"] == {
        *("Type", "User", "WorkingDirectory", "Environment", "EnvironmentFile", "RuntimeDirectory"),
        *("RuntimeDirectoryMode", "ExecStartPre", "ExecStart", "ExecStopPost", "KillMode", "TimeoutStopSec"),
        *("Restart", "LimitNOFILE", "NoNewPrivileges", "ProtectSystem"),
    }


def test_unit_of_systemd_makes_and_clears_one_folder() -> None:
    service = dict(unit("systemd/inference.service")["Service"])
    folder = f"/run/{service['RuntimeDirectory']}"
    lines = unit("systemd/inference.service")["Service"]
    environ = dict(value.split("=", 1) for key, value in lines if key == "Environment")
    assert Settings.from_env(environ).control.nginx_flags_dir == folder
    assert shlex.split(service["ExecStopPost"])[-1] == f"rm -f {folder}/tier*"
    assert int(shlex.split(service["ExecStart"])[-1]) < int(service["TimeoutStopSec"])


def test_envoy_bounds_by_the_rates_and_reads_our_fields() -> None:
    listener = manifest("envoy/envoy.yaml")["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    limit, admission, _ = (each["typed_config"] for each in manager["http_filters"])
    bucket = limit["token_bucket"]
    per_s = bucket["tokens_per_fill"] / float(bucket["fill_interval"].removesuffix("s"))
    assert per_s == sum(Settings().rates.rates_rps)
    (statuses,) = admission["success_criteria"]["http_criteria"]["http_success_status"]
    assert 429 in range(statuses["start"], statuses["end"])
    assert 503 not in range(statuses["start"], statuses["end"])
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    retries = route["route"]["retry_policy"]["rate_limited_retry_back_off"]
    assert [field["name"] for field in retries["reset_headers"]] == ["retry-after"]
