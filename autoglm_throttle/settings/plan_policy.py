"""Plans: limits and priority of groups of callers, by name, with their members."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, TypedDict, Unpack

from autoglm_throttle.settings.field_types import PRIORITY, FieldType, FieldTypeError, listed, word
from autoglm_throttle.settings.groups.base import Override
from autoglm_throttle.settings.problems import MASK
from autoglm_throttle.settings.route_policy import LABEL
from autoglm_throttle.settings.user_limits import USER_LIMITS
from autoglm_throttle.types import Priority, PriorityName, UserLimit

_MEMBER: Final = word(
    r"[0-9a-f]{16}",
    "identity texts of 16 hex digits, as printed by autoglm-throttle identity",
    "07f3a9c2d4e5b617",
    lower=True,
)
_MEMBERS: Final = listed(_MEMBER)


def _members(raw: object) -> tuple[str, ...]:
    """Parse the list without repeating its content: an API key put here by mistake must not reach a log."""
    try:
        return tuple(_MEMBERS.parse(raw))
    except ValueError:
        raise FieldTypeError(f"for example {_MEMBER.example}") from None


MEMBERS: Final = FieldType(
    _MEMBERS.allowed, _MEMBER.example, _members, text=_MEMBERS.text, public=lambda _: MASK, hidden=True
)


class PlanValues(TypedDict, total=False):
    """Arguments of ``PlanPolicy`` besides its name."""

    user_limit: str | Sequence[UserLimit] | None
    priority: Priority | PriorityName | None
    members: str | Collection[str]


class PlanPolicy(Override):
    """Limits and priority of one group of callers.

    Args:
        name: the name in ``Demand.plan``.
        values: the other columns, by name:

            - ``user_limit``: replaces ``USER_LIMIT`` for each member; ``off`` lifts it, None leaves it.
            - ``priority``: the class of its requests; None leaves it to routes and settings.
            - ``members``: identity texts of the callers (16 hex digits); they mean the same caller
              everywhere only with a ``KEY_SECRET``.

    Raises:
        ConfigError: one problem for each argument that is not allowed.
    """

    positional: ClassVar[str] = "name"

    name: Annotated[str, LABEL]
    user_limit: Annotated[tuple[UserLimit, ...], USER_LIMITS] | None = None
    priority: Annotated[Priority, PRIORITY] | None = None
    members: Annotated[tuple[str, ...], MEMBERS] = ()

    if TYPE_CHECKING:

        def __init__(self, name: str, **values: Unpack[PlanValues]) -> None: ...
