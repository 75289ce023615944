"""One frozen model for each mechanism, and the table of all settings."""

from collections.abc import Mapping
from functools import cache
from typing import ClassVar, Final, cast

from pydantic import BaseModel, ConfigDict

from autoglm_throttle.settings.groups.base import Group, Setting, declared
from autoglm_throttle.settings.groups.breaker import (
    BreakerSettings,
    DegradationSettings,
    SharedBreakerSettings,
)
from autoglm_throttle.settings.groups.callers import CallerSettings, ResponseSettings, UserSettings
from autoglm_throttle.settings.groups.control import ConcurrencySettings, ControlSettings, RateSettings
from autoglm_throttle.settings.groups.gpu import GpuSettings, QuotaSettings, VerdictSettings
from autoglm_throttle.settings.groups.observe import (
    AlertSettings,
    LoadingSettings,
    ObserveSettings,
    RecorderSettings,
)
from autoglm_throttle.settings.groups.store import FleetSettings, StoreSettings
from autoglm_throttle.settings.groups.tokens import TokenSettings


class Groups(BaseModel):
    """The groups by attribute of ``Settings``, in the order of the settings page."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, hide_input_in_errors=True
    )

    control: ControlSettings
    rates: RateSettings
    concurrency: ConcurrencySettings
    users: UserSettings
    tokens: TokenSettings
    store: StoreSettings
    fleet: FleetSettings
    callers: CallerSettings
    responses: ResponseSettings
    gpu: GpuSettings
    verdict: VerdictSettings
    quota: QuotaSettings
    breaker: BreakerSettings
    shared_breakers: SharedBreakerSettings
    degradation: DegradationSettings
    recorder: RecorderSettings
    observe: ObserveSettings
    alerting: AlertSettings
    loading: LoadingSettings


# Attribute of `Settings` -> group.
GROUPS: Final[Mapping[str, type[Group]]] = {
    attribute: cast("type[Group]", info.annotation) for attribute, info in Groups.model_fields.items()
}

# Name of a setting -> attribute of its group.
GROUP_OF: Final[Mapping[str, str]] = {
    group.prefix + field: attribute for attribute, group in GROUPS.items() for field in group.model_fields
}


@cache
def settings_table() -> Mapping[str, Setting]:
    """Return every setting by its name, in the order of the settings page."""
    return {name: known for group in GROUPS.values() for name, known in declared(group).items()}
