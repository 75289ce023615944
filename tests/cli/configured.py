"""The files and the secret of a command line's tests, and how they call it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
SECRET = "planted-secret-planted-secret"
TOML = f"""\
key_secret = "{SECRET}"
period_s = "250ms"
user_limit_low = "10/minute"

[[routes]]
pattern = "/payments/*"
priority = "high"

[[routes]]
pattern = "/v1/generate"
methods = ["POST"]
cost = 4
user_limit = "20/minute;2/second"
tokens_limit = "60000/minute"
tokens_input_limit = "off"
slo_s = 30

[[routes]]
pattern = "/status/{{job}}"
exempt = true

[[routes]]
pattern = "/payments/logs"
priority = "low"
user_limit = "off"

[plans.gold]
user_limit = "1000/minute"
tokens_output_limit = "9000/minute"
priority = "high"
members = ["07f3a9c2d4e5b617"]

[plans.trial]

[guards.vector-db]
failures = 3
timeout_s = "2s"
max_stale_s = "5m"

[guards."https://models.example.org:8443"]
trip = "slow_rate,consecutive"
slow_call_s = 5
criticality = "non_core"
shed_above = "85%"

[guards.tokenizer]
mode = "metrics_only"
"""
WRONG = """\
inflight_start = 16
inflight_floor = 32
reserve_mid = 0.7
signal = "pressure"
gpu_pressure_terms = []

[guards."https://a.b:1"]
open_max_s = 5
failurs = 3
"""

Run = Callable[..., tuple[int, str]]
"""Calls `main` with words, standard input and variables; returns the exit status and all output."""
