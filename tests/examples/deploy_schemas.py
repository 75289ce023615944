"""Schemas of the files of examples/deploy: compose, Kubernetes, Prometheus, Grafana and Envoy."""

from __future__ import annotations

from tests.examples.manifests import DURATION, FLAG, TEXT, WHOLE, Schema, by_name, const, each, exact

NAME: Schema = {"type": "string", "pattern": "^[a-z0-9-]{1,63}$"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65_535}
VARIABLES = by_name({"type": "string"}, "^[A-Z][A-Z0-9_]*$")
WORDS: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}

# Compose

DEVICE = exact({"driver": const("nvidia"), "count": const("all"), "capabilities": const(["gpu"])})
DEPLOY = exact({"resources": exact({"reservations": exact({"devices": each(DEVICE)})})})
CONDITION = exact({"condition": {"enum": ["service_started", "service_healthy"]}})
SERVICE: Schema = {
    **exact(
        {},
        {
            "image": {"type": "string", "pattern": r"^[a-z0-9./-]+:v?\d+\.\d+"},
            "build": exact({"context": TEXT, "dockerfile": TEXT}),
            "entrypoint": WORDS,
            "command": WORDS,
            "environment": VARIABLES,
            "ports": each({"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}),
            "volumes": each({"type": "string", "pattern": r"^\.{1,2}/[\w./-]+:/[\w./-]+:ro$"}),
            "depends_on": by_name(CONDITION),
            "healthcheck": exact(
                {"test": WORDS, "interval": DURATION, "timeout": DURATION, "retries": WHOLE}
            ),
            "stop_grace_period": DURATION,
            "restart": const("unless-stopped"),
            "ipc": const("host"),
            "deploy": DEPLOY,
        },
    )
}
COMPOSE = exact({"services": by_name(SERVICE)}, {"name": NAME})

# Kubernetes

LABELS = by_name(TEXT)
SELECTOR = exact({"matchLabels": LABELS})
METADATA = exact({"name": NAME}, {"labels": LABELS})
SOURCE = exact({"secretKeyRef": exact({"name": NAME, "key": NAME})})
VARIABLE: Schema = {
    "oneOf": [exact({"name": TEXT, "value": TEXT}), exact({"name": TEXT, "valueFrom": SOURCE})]
}
PROBE = exact(
    {"httpGet": exact({"path": TEXT, "port": TEXT}), "periodSeconds": WHOLE, "failureThreshold": WHOLE},
    {"timeoutSeconds": WHOLE},
)
CONTAINER = exact(
    {
        "name": NAME,
        "image": TEXT,
        "ports": each(exact({"name": NAME, "containerPort": PORT})),
        "env": each(VARIABLE),
        "readinessProbe": PROBE,
        "livenessProbe": PROBE,
        "startupProbe": PROBE,
        "lifecycle": exact({"preStop": exact({"exec": exact({"command": WORDS})})}),
        "resources": exact({"requests": by_name(TEXT), "limits": by_name(TEXT)}),
        "securityContext": exact(
            {"allowPrivilegeEscalation": const(False), "capabilities": exact({"drop": const(["ALL"])})}
        ),
    }
)
POD = exact(
    {
        "terminationGracePeriodSeconds": WHOLE,
        "securityContext": exact(
            {
                "runAsNonRoot": const(True),
                "runAsUser": WHOLE,
                "seccompProfile": exact({"type": const("RuntimeDefault")}),
            }
        ),
        "containers": each(CONTAINER),
    }
)


def resource(version: str, kind: str, **parts: Schema) -> Schema:
    """A resource of Kubernetes."""
    return exact({"apiVersion": const(version), "kind": const(kind), "metadata": METADATA, **parts})


DEPLOYMENT = resource(
    "apps/v1",
    "Deployment",
    spec=exact(
        {
            "selector": SELECTOR,
            "strategy": exact({"rollingUpdate": exact({"maxSurge": WHOLE, "maxUnavailable": WHOLE})}),
            "template": exact({"metadata": exact({"labels": LABELS, "annotations": LABELS}), "spec": POD}),
        }
    ),
)
SERVICE_PORT = exact({"name": NAME, "port": PORT, "targetPort": TEXT})
BALANCER = resource("v1", "Service", spec=exact({"selector": LABELS, "ports": each(SERVICE_PORT)}))
BUDGET = resource(
    "policy/v1", "PodDisruptionBudget", spec=exact({"maxUnavailable": WHOLE, "selector": SELECTOR})
)
SECRET = resource("v1", "Secret", type=const("Opaque"), stringData=by_name(TEXT))

# Prometheus and Grafana

SCRAPE = exact({"job_name": NAME, "metrics_path": TEXT, "static_configs": each(exact({"targets": WORDS}))})
PROMETHEUS = exact(
    {
        "global": exact({"scrape_interval": DURATION, "evaluation_interval": DURATION}),
        "rule_files": WORDS,
        "scrape_configs": each(SCRAPE),
    }
)
DATASOURCE = exact(
    {"name": TEXT, "type": const("prometheus"), "access": const("proxy"), "url": TEXT, "isDefault": FLAG}
)
DATASOURCES = exact({"apiVersion": const(1), "datasources": each(DATASOURCE)})
PROVIDER = exact({"name": TEXT, "type": const("file"), "options": exact({"path": TEXT})})
DASHBOARDS = exact({"apiVersion": const(1), "providers": each(PROVIDER)})

# Envoy

FILTERS = "type.googleapis.com/envoy.extensions.filters"
ADDRESS = exact({"socket_address": exact({"address": TEXT, "port_value": PORT})})
PERCENT = exact({"value": {"type": "number", "minimum": 0, "maximum": 100}})
ALWAYS = exact({"default_value": exact({"numerator": const(100), "denominator": const("HUNDRED")})})


def runtime(value: Schema) -> Schema:
    """A value that the runtime of Envoy can replace."""
    return exact({"default_value": value, "runtime_key": TEXT})


def http_filter(name: str, kind: str, required: Schema) -> Schema:
    """A filter of HTTP requests."""
    typed = exact({"@type": const(f"{FILTERS}.http.{name}.v3.{kind}"), **required})
    return exact({"name": const(f"envoy.filters.http.{name}"), "typed_config": typed})


LOCAL_LIMIT = http_filter(
    "local_ratelimit",
    "LocalRateLimit",
    {
        "stat_prefix": NAME,
        "token_bucket": exact({"max_tokens": WHOLE, "tokens_per_fill": WHOLE, "fill_interval": DURATION}),
        "filter_enabled": ALWAYS,
        "filter_enforced": ALWAYS,
        "response_headers_to_add": each(
            exact(
                {
                    "append_action": const("OVERWRITE_IF_EXISTS_OR_ADD"),
                    "header": exact({"key": TEXT, "value": TEXT}),
                }
            )
        ),
    },
)
STATUSES = exact({"http_success_status": each(exact({"start": WHOLE, "end": WHOLE}))})
ADMISSION = http_filter(
    "admission_control",
    "AdmissionControl",
    {
        "success_criteria": exact({"http_criteria": STATUSES}),
        "sampling_window": DURATION,
        "sr_threshold": runtime(PERCENT),
        "aggression": runtime({"type": "number", "minimum": 1}),
        "rps_threshold": runtime(WHOLE),
        "max_rejection_probability": runtime(PERCENT),
    },
)
RETRIES = exact(
    {
        "retry_on": const("retriable-status-codes"),
        "retriable_status_codes": const([503]),
        "num_retries": WHOLE,
        "rate_limited_retry_back_off": exact(
            {
                "reset_headers": each(exact({"name": TEXT, "format": const("SECONDS")})),
                "max_interval": DURATION,
            }
        ),
    }
)
ROUTE = exact(
    {
        "match": exact({"prefix": TEXT}),
        "route": exact({"cluster": NAME, "timeout": DURATION, "retry_policy": RETRIES}),
    }
)
HOST = exact({"name": NAME, "domains": WORDS, "routes": each(ROUTE)})
MANAGER = exact(
    {
        "@type": const(f"{FILTERS}.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": NAME,
        "use_remote_address": const(True),
        "stream_idle_timeout": DURATION,
        "route_config": exact({"name": NAME, "virtual_hosts": each(HOST)}),
        "http_filters": {
            "type": "array",
            "prefixItems": [LOCAL_LIMIT, ADMISSION, http_filter("router", "Router", {})],
            "minItems": 3,
            "maxItems": 3,
        },
    }
)
CHAIN = exact(
    {
        "filters": each(
            exact({"name": const("envoy.filters.network.http_connection_manager"), "typed_config": MANAGER})
        )
    }
)
LISTENER = exact({"name": NAME, "address": ADDRESS, "filter_chains": each(CHAIN)})
BUDGET_OF_RETRIES = exact({"budget_percent": PERCENT, "min_retry_concurrency": WHOLE})
LOCALITY = exact({"lb_endpoints": each(exact({"endpoint": exact({"address": ADDRESS})}))})
UPSTREAM = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
PROTOCOL = exact(
    {
        "@type": const(f"type.googleapis.com/{UPSTREAM}"),
        "common_http_protocol_options": exact({"idle_timeout": DURATION}),
        "explicit_http_config": exact({"http_protocol_options": exact({})}),
    }
)
CLUSTER = exact(
    {
        "name": NAME,
        "type": const("STRICT_DNS"),
        "connect_timeout": DURATION,
        "typed_extension_protocol_options": exact({UPSTREAM: PROTOCOL}),
        "circuit_breakers": exact({"thresholds": each(exact({"retry_budget": BUDGET_OF_RETRIES}))}),
        "load_assignment": exact({"cluster_name": NAME, "endpoints": each(LOCALITY)}),
    }
)
ENVOY = exact({"static_resources": exact({"listeners": each(LISTENER), "clusters": each(CLUSTER)})})

SCHEMAS: dict[str, Schema] = {
    "compose.yaml": COMPOSE,
    "compose.gpu.yaml": COMPOSE,
    "prometheus.yml": PROMETHEUS,
    "grafana/datasources.yaml": DATASOURCES,
    "grafana/dashboards.yaml": DASHBOARDS,
    "kubernetes/deployment.yaml": DEPLOYMENT,
    "kubernetes/service.yaml": BALANCER,
    "kubernetes/pod-disruption-budget.yaml": BUDGET,
    "kubernetes/secret.yaml": SECRET,
    "envoy/envoy.yaml": ENVOY,
    "vllm/compose.yaml": COMPOSE,
}
"""File of examples/deploy -> its schema."""
