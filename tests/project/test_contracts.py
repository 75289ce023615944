"""The import contracts hold, and each of them notices the violation it is there for, on one import graph."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import grimp
import pytest
from importlinter import configuration
from importlinter.application import use_cases
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract
from importlinter.domain.contract import Contract

ROOT = Path(__file__).parents[2]
PACKAGE = "autoglm_throttle"
KINDS = {"layers": LayersContract, "forbidden": ForbiddenContract}


class Violation(NamedTuple):
    """An import, or a module (imports nothing), and the contract that it breaks."""

    importer: str
    imported: str
    broken: str


VIOLATIONS = [
    Violation("_runtime.worker", "types.requests", "layers"),
    Violation("types.requests", "settings", "layers"),
    Violation("settings.field_types", "control.tiers", "layers"),
    Violation("settings.field_types", "events", "layers"),
    Violation("events", "limiting.ticket", "layers"),
    Violation("limiting.token_bucket", "throttle", "layers"),
    Violation("limiting.token_bucket", "store.client", "layers"),
    Violation("limiting.user_limits", "control.tiers", "layers"),
    Violation("gpu.nvml.provider", "asgi.routes", "layers"),
    Violation("gpu.sampler", "limiting.token_bucket", "layers"),
    Violation("control.tiers", "gpu.aggregate", "layers"),
    Violation("resilience.state", "gpu.aggregate", "layers"),
    Violation("store.client", "admission.permit", "layers"),
    Violation("admission.snapshot", "throttle", "layers"),
    Violation("throttle", "asgi.routes", "layers"),
    Violation("asgi.routes", "fastapi", "layers"),
    Violation("fastapi", "observe.logs", "layers"),
    Violation("testing.assertions", "traffic.plan", "layers"),
    Violation("observe.logs", "cli.main", "layers"),
    Violation("helpers", "", "layers"),
    Violation("_runtime.serial_lock", "_runtime.worker", "runtime"),
    Violation("_runtime.signals", "", "runtime"),
    Violation("admission.settlement", "admission.controller", "admission"),
    Violation("admission.soap", "", "admission"),
    Violation("gpu.aggregate", "gpu.sampler", "gpu"),
    Violation("gpu.rocm", "", "gpu"),
    Violation("store.protocol", "store.batch", "store"),
    Violation("store.mongo", "", "store"),
    Violation("resilience.fallback", "resilience.guard", "resilience"),
    Violation("resilience.retry", "", "resilience"),
    Violation("resilience.http.answer", "resilience.http.call", "http"),
    Violation("resilience.http.brotli", "", "http"),
    Violation("store.breakers.protocol", "store.breakers.sync", "breakers"),
    Violation("store.breakers.etcd", "", "breakers"),
    Violation("traffic.results", "traffic.report", "traffic"),
    Violation("traffic.soap", "", "traffic"),
    Violation("control.tiers", "<time>", "pure"),
    Violation("gpu.aggregate", "<asyncio>", "pure"),
    Violation("gpu.sanity", "<anyio>", "pure"),
    Violation("gpu.verdict.table", "<prometheus_client>", "pure"),
    Violation("gpu.interval", "<threading>", "pure"),
    Violation("gpu.nvml.visible", "<pynvml>", "pure"),
    Violation("types.identity", "<time>", "pure"),
    Violation("store.protocol", "<time>", "pure"),
    Violation("resilience.drive", "<time>", "pure"),
    Violation("store.leases", "<asyncio>", "pure"),
    Violation("limiting.sliding_window", "<redis>", "pure"),
    Violation("limiting.token_bucket", "_runtime.serial_lock", "pure"),
    Violation("types.requests", "<starlette>", "pure"),
    Violation("asgi.responses", "", "root_package"),
]
"""A name in angle brackets is a package of others; every other one stands below ours."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(PACKAGE, include_external_packages=True, cache_dir=None)


@pytest.fixture(scope="module")
def contracts() -> dict[str, Contract]:
    configuration.configure()
    options = use_cases.read_user_options(config_filename=str(ROOT / "pyproject.toml"))
    return {given["id"]: contract(given, options.session_options) for given in options.contracts_options}


def contract(given: dict[str, Any], session: dict[str, Any]) -> Contract:
    made: Contract = KINDS[given["type"]](given["name"], session, given)
    return made


def kept(contract: Contract, graph: grimp.ImportGraph) -> bool:
    # A contract removes from the graph it is given the imports that it ignores.
    return contract.check(graph=deepcopy(graph), verbose=False).kept


def test_all_contracts_are_kept(graph: grimp.ImportGraph, contracts: dict[str, Contract]) -> None:
    assert [key for key, contract in contracts.items() if not kept(contract, graph)] == []


@pytest.mark.parametrize("violation", VIOLATIONS, ids=str)
def test_a_planted_violation_breaks_its_contract(
    violation: Violation, graph: grimp.ImportGraph, contracts: dict[str, Contract]
) -> None:
    planted = deepcopy(graph)
    importer = f"{PACKAGE}.{violation.importer}"
    if violation.broken == "root_package":
        planted.add_import(importer=importer, imported=PACKAGE)
    elif not violation.imported:
        planted.add_module(importer)
    else:
        own = f"{PACKAGE}.{violation.imported}"
        outside = violation.imported.strip("<>") if violation.imported.startswith("<") else ""
        assert importer in planted.modules
        if outside and outside not in planted.modules:
            planted.add_module(outside, is_squashed=True)
        assert (outside or own) in planted.modules, "a violation names a module that exists"
        planted.add_import(importer=importer, imported=outside or own)
    assert not kept(contracts[violation.broken], planted)


def test_every_contract_is_tried_with_a_violation(contracts: dict[str, Contract]) -> None:
    assert {violation.broken for violation in VIOLATIONS} == set(contracts)
