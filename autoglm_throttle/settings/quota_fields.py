"""Settings of resource quotas: the memory share of each class, and the advice to the app."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.field import CHOSEN, FOUNDING, setting
from autoglm_throttle.settings.field_types import Flag, Listed, PriorityType, WithNone
from autoglm_throttle.settings.gpu_fields import GpuSettings
from autoglm_throttle.settings.resource_policy import RATIO, Precision
from autoglm_throttle.types import Priority


class QuotaSettings(GpuSettings):
    """Declarations of the settings of resource quotas."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    quotas: Annotated[bool, Flag()] = setting(
        False,
        "Whether memory is reserved for important requests and the app gets advice on how to serve each "
        "request; a resource_policy in CONFIG_FILE or code turns it on.",
        CHOSEN,
    )
    precisions: Annotated[tuple[str, ...], Listed(Precision())] = setting(
        (),
        "Variants that the service has, the best first: under load less important requests are advised to "
        "use the last. A client may request a lesser one in the header X-Precision.",
        CHOSEN,
    )
    compute_priority: Annotated[Priority | None, WithNone(PriorityType())] = setting(
        None, "The class passed to the engine; not set: that of each request.", CHOSEN
    )
    gpu_memory_ratio: Annotated[float, RATIO] = setting(
        0.7,
        "Share of the memory that requests can fill from which mid is rejected; high has GPU_MEMORY_TARGET.",
        FOUNDING,
    )
    gpu_memory_ratio_low: Annotated[float, RATIO] = setting(
        0.5, "The same for low; where GPU_MEMORY_RATIO is less, that counts.", CHOSEN
    )
