"""The table ``resource_policy``: of the whole service, or of one route."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from autoglm_throttle.settings.field_types import (
    FieldType,
    FieldTypeError,
    Listed,
    Number,
    PriorityType,
    WithNone,
    read_all,
)
from autoglm_throttle.settings.problems import ConfigError, Problem, unknown_keys
from autoglm_throttle.types import Priority, PriorityName

RATIO: Final = Number(0.01, 1, "share")

_LABEL: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")


class Precision(FieldType[str]):
    """The label of one variant of a model."""

    allowed = "labels such as fp16, of at most 32 letters, digits, dots, dashes and underscores"
    example = "fp16,int8"

    def parse(self, raw: object) -> str:
        """Parse a label in lower case."""
        label = raw.strip().lower() if isinstance(raw, str) else ""
        if not _LABEL.fullmatch(label):
            raise FieldTypeError
        return label


POLICY_FIELD_TYPES: Final[Mapping[str, FieldType[Any]]] = {
    "precision_hint": WithNone(Listed(Precision())),
    "gpu_memory_ratio": WithNone(RATIO),
    "compute_priority": WithNone(PriorityType()),
}

SETTINGS_OF: Final = {
    "precision_hint": "precisions",
    "gpu_memory_ratio": "gpu_memory_ratio",
    "compute_priority": "compute_priority",
}
"""Key of the service's table -> the setting that it sets."""


@dataclass(frozen=True, slots=True, init=False)
class ResourcePolicy:
    """Memory share and serving advice of one route; None leaves a value unchanged.

    Args:
        precision_hint: labels of the variants, the best first; replaces ``PRECISIONS``.
        gpu_memory_ratio: share of the memory that requests can fill, 0.01..1, above which the route's
            requests are rejected, in every class; ``GPU_MEMORY_TARGET`` stays above it.
        compute_priority: the class passed to the engine.

    Raises:
        ConfigError: one problem for each argument that is not allowed.
    """

    precision_hint: tuple[str, ...] | None
    gpu_memory_ratio: float | None
    compute_priority: Priority | None

    def __init__(
        self,
        precision_hint: str | Sequence[str] | None = None,
        gpu_memory_ratio: float | str | None = None,
        compute_priority: Priority | PriorityName | None = None,
    ) -> None:
        given = (precision_hint, gpu_memory_ratio, compute_priority)
        values, problems = read_all(POLICY_FIELD_TYPES, dict(zip(POLICY_FIELD_TYPES, given, strict=True)))
        if problems:
            raise ConfigError(problems)
        for column, value in values.items():
            object.__setattr__(self, column, value)

    def explicit_fields(self) -> dict[str, object]:
        """Return the values that are set."""
        return {key: value for key in POLICY_FIELD_TYPES if (value := getattr(self, key)) is not None}


class ResourcePolicyType(FieldType[ResourcePolicy]):
    """A policy made in code, or a TOML table."""

    allowed = "a table with precision_hint, gpu_memory_ratio or compute_priority"
    example = "{ gpu_memory_ratio = 0.5 }"

    def parse(self, raw: object) -> ResourcePolicy:
        """Accept a policy, or build one from a table."""
        if isinstance(raw, ResourcePolicy):
            return raw
        if not isinstance(raw, Mapping):
            raise FieldTypeError
        problems = unknown_keys(raw, tuple(POLICY_FIELD_TYPES))
        try:
            policy = ResourcePolicy(**{key: raw[key] for key in POLICY_FIELD_TYPES if key in raw})
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(Problem("." + p.variable, p.message, p.hint) for p in problems)
        return policy
