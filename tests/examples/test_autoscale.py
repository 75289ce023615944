"""The manifests of examples/autoscale are valid, and their query and rule are those of the simulated day."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from autoglm_throttle.observe import METRICS
from benchmarks import autoscale
from tests.examples.manifests import NAME, TEXT, WHOLE, const, exact

FOLDER = Path(__file__).parents[2] / "examples" / "autoscale"


NUMBER = {"type": "string", "pattern": r"^\d+(\.\d+)?$"}
POLICY = exact(
    {"type": {"enum": ["Pods", "Percent"]}, "value": {**WHOLE, "minimum": 1}, "periodSeconds": WHOLE}
)
RULES = exact(
    {"policies": {"type": "array", "items": POLICY, "minItems": 1}},
    {"stabilizationWindowSeconds": {**WHOLE, "maximum": 3600}, "selectPolicy": {"enum": ["Max", "Min"]}},
)
BEHAVIOR = exact({"scaleUp": RULES, "scaleDown": RULES})
QUERY = exact({"serverAddress": TEXT, "query": TEXT, "threshold": NUMBER}, {"activationThreshold": NUMBER})
TRIGGER = exact({"type": const("prometheus"), "metadata": QUERY})
COUNTS = ("minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod")
SCALED_OBJECT = exact(
    {
        "apiVersion": const("keda.sh/v1alpha1"),
        "kind": const("ScaledObject"),
        "metadata": NAME,
        "spec": exact(
            {
                "scaleTargetRef": NAME,
                "triggers": {
                    "type": "array",
                    "items": exact({"type": const("prometheus"), "metadata": QUERY}),
                },
            },
            {
                **dict.fromkeys(
                    ("minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod"), WHOLE
                ),
                "fallback": exact({"failureThreshold": WHOLE, "replicas": WHOLE}),
                "advanced": exact({"horizontalPodAutoscalerConfig": exact({"behavior": BEHAVIOR})}),
            },
        ),
    }
)
EXTERNAL = exact(
    {
        "metric": exact({"name": TEXT}),
        "target": exact({"type": const("AverageValue"), "averageValue": NUMBER}),
    }
)
METRIC = exact({"type": const("External"), "external": EXTERNAL})
AUTOSCALER = exact(
    {
        "apiVersion": const("autoscaling/v2"),
        "kind": const("HorizontalPodAutoscaler"),
        "metadata": NAME,
        "spec": exact(
            {
                "scaleTargetRef": exact({"apiVersion": TEXT, "kind": TEXT, "name": TEXT}),
                "minReplicas": {**WHOLE, "minimum": 1},
                "maxReplicas": WHOLE,
                "metrics": {
                    "type": "array",
                    "items": exact({"type": const("External"), "external": EXTERNAL}),
                },
                "behavior": BEHAVIOR,
            }
        ),
    }
)
RULE = exact(
    {
        "seriesQuery": TEXT,
        "metricsQuery": {"type": "string", "pattern": "<<.LabelMatchers>>"},
        "name": exact({"as": TEXT}),
        "resources": exact({"overrides": {"type": "object"}}),
    }
)
ADAPTER = exact(
    {"rules": exact({"default": {"type": "boolean"}, "external": {"type": "array", "items": RULE}})}
)
SCHEMAS = {
    "keda-scaledobject.yaml": SCALED_OBJECT,
    "hpa-external.yaml": AUTOSCALER,
    "prometheus-adapter.yaml": ADAPTER,
}


def manifest(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def queries() -> dict[str, str]:
    """The query of each way, with the same matcher of labels."""
    adapter = manifest("prometheus-adapter.yaml")["rules"]["external"][0]["metricsQuery"]
    return {
        "keda": manifest("keda-scaledobject.yaml")["spec"]["triggers"][0]["metadata"]["query"],
        "adapter": adapter.replace("<<.LabelMatchers>>", 'job="inference"'),
    }


def behaviors() -> list[Any]:
    keda = manifest("keda-scaledobject.yaml")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    return [keda["behavior"], manifest("hpa-external.yaml")["spec"]["behavior"]]


def test_every_file_has_its_schema() -> None:
    assert {path.name for path in FOLDER.iterdir()} == SCHEMAS.keys()


@pytest.mark.parametrize("name", SCHEMAS)
def test_manifest_is_valid(name: str) -> None:
    jsonschema.validate(manifest(name), SCHEMAS[name])


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_finds_a_misspelt_key(name: str) -> None:
    wrong = manifest(name)
    part = wrong.get("spec", wrong.get("rules"))
    part["minReplicaz"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMAS[name])


def test_rule_is_that_of_the_simulated_day() -> None:
    for behavior in behaviors():
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
        down = behavior["scaleDown"]
        assert down["stabilizationWindowSeconds"] == autoscale.STABLE_S
        assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": autoscale.DOWN_S}]
    spec = manifest("keda-scaledobject.yaml")["spec"]
    assert spec["pollingInterval"] == autoscale.SYNC_S
    assert spec["triggers"][0]["metadata"]["threshold"] == "1"


def test_queries_are_equal_and_name_existing_metrics() -> None:
    keda, adapter = queries().values()
    assert keda.split() == adapter.split()
    assert f"[{autoscale.SMOOTH_S / 60:.0f}m:{autoscale.SYNC_S:.0f}s]) / {autoscale.HEADROOM}," in keda
    names = {spec.name for spec in METRICS}
    assert {"autoglm_throttle_desired_replicas_ratio", "autoglm_throttle_scale_hold"} <= names


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")
@pytest.mark.parametrize(
    ("ratios", "holds", "wanted"),
    [
        ((0.5, 1.0), (0, 0), 2.0),
        ((0.25, 0.5), (0, 1), 2.0),
        ((1.75, 2.0), (1, 1), 5.0),
        ((), (1, 0), 2.0),
    ],
)
def test_query_gives_the_wanted_replicas(
    tmp_path: Path, ratios: tuple[float, ...], holds: tuple[int, ...], wanted: float
) -> None:
    def series(name: str, values: tuple[float, ...]) -> list[dict[str, str]]:
        labels = [f'{{job="inference", instance="{number}"}}' for number in range(len(values))]
        return [
            {"series": f"autoglm_throttle_{name}{one}", "values": f"{value}x2"}
            for one, value in zip(labels, values, strict=True)
        ]

    (tmp_path / "rules.yml").write_text(
        yaml.safe_dump(
            {"groups": [{"name": "one", "rules": [{"record": "wanted", "expr": queries()["keda"]}]}]}
        )
    )
    given = [*series("desired_replicas_ratio", ratios), *series("scale_hold", holds)]
    expected = {"expr": "wanted", "eval_time": "1m", "exp_samples": [{"labels": "wanted", "value": wanted}]}
    test = {"interval": "1m", "input_series": given, "promql_expr_test": [expected]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_autoscaler_adds_at_once_and_removes_slowly() -> None:
    scaler = autoscale.Autoscaler()
    assert scaler.count(0.0, 1, 3.9 * autoscale.HEADROOM) == 4
    assert scaler.count(15.0, 4, 3.7 * autoscale.HEADROOM) == 4, "within the tolerance"
    counts, present = [], 4
    for step in range(1, 400):
        now = 15.0 + step * autoscale.SYNC_S
        present = scaler.count(now, present, 1.0 * autoscale.HEADROOM)
        counts.append((now, present))
    removed = [now for (_, before), (now, after) in itertools.pairwise(counts) if after < before]
    assert removed[0] > autoscale.STABLE_S
    assert all(later - earlier >= autoscale.DOWN_S for earlier, later in itertools.pairwise(removed))
    assert present == 1


def test_short_day_meets_its_bars() -> None:
    figures = autoscale.run(1.0, 2.0)
    assert figures["requests"] > 5_000
    assert figures["most_replicas"] >= 2
    assert figures["rejected_share"] <= autoscale.REJECTED
    assert figures["reversals_per_hour"] <= autoscale.REVERSALS


def test_hour_has_the_mean_of_an_llm_service() -> None:
    rates = autoscale.hour(1)
    assert sum(rates) / len(rates) == pytest.approx(autoscale.RPS)
    assert math.isclose(autoscale.rate_at(rates, 43_200, 1.0), rates[43_200 % 3600])
    assert math.isclose(autoscale.rate_at(rates, 0, 1.0), 0.3 * rates[0])
