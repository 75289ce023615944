"""Configuration of one guard: a table ``[guards.<name>]``, or the same in code."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Unpack

from autoglm_throttle.settings.field_types import AGE, LOAD, FieldType, FieldTypeError, choice
from autoglm_throttle.settings.groups.breaker import BreakerSettings, BreakerValues
from autoglm_throttle.types import Criticality, CriticalityName

NAME_CHARACTERS: Final = 200


def _guard_name(raw: object) -> str:
    """Accept a name unchanged: code refers to it letter by letter."""
    if not isinstance(raw, str) or not raw.isprintable() or not 1 <= len(raw) <= NAME_CHARACTERS:
        raise FieldTypeError
    return raw


GUARD_NAME: Final = FieldType(
    f"a name of 1 to {NAME_CHARACTERS} printable characters", "vector-db", _guard_name
)
"""The name of a guard; an origin such as ``https://host:8443`` is a name, too."""


class GuardValues(BreakerValues, total=False):
    """Arguments of ``GuardPolicy`` besides its name."""

    criticality: Criticality | CriticalityName | None
    shed_above: float | str | None
    max_stale_s: float | str | None


class GuardPolicy(BreakerSettings):
    """Settings of one guard instead of ``BREAKER_*`` and ``DEGRADE_*``; None leaves a value to them.

    Args:
        name: the name in ``throttle.guard(name)``.
        values: the arguments of ``BreakerSettings``, and:

            - ``criticality``: whether its feature is core; None: as registered in code.
            - ``shed_above``: load above which the feature is shed, 0.01..1, instead of ``DEGRADE_SHED_AT``;
              it needs the criticality ``non_core``.
            - ``max_stale_s``: age in seconds up to which a cached response may replace a new one.

    Raises:
        ConfigError: one problem for each argument that is not allowed, and for each two that
            contradict each other.
    """

    positional: ClassVar[str] = "name"

    name: Annotated[str, GUARD_NAME]
    criticality: Annotated[Criticality, choice(Criticality)] | None = None
    shed_above: Annotated[float, LOAD] | None = None
    max_stale_s: Annotated[float, AGE] | None = None

    if TYPE_CHECKING:

        def __init__(self, name: str, **values: Unpack[GuardValues]) -> None: ...

    def own_values(self) -> dict[str, Any]:
        """Return the values that are set, and always the criticality, which has no default elsewhere."""
        return {"criticality": self.criticality} | self.explicit()
