"""Settings of the shared store: address, keys, time limits, and its failure mode."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.field import CHOSEN, CONVENTION, setting
from autoglm_throttle.settings.field_types import ChoiceType, Flag, Number, Whole, WithNone
from autoglm_throttle.settings.store_field_types import HOST_CHARACTERS, KeyText, RedisUrlType, StorageUriType
from autoglm_throttle.settings.user_fields import UserLimitSettings
from autoglm_throttle.types import STALL_S, StoreFailureMode


class StoreSettings(UserLimitSettings):
    """Declarations of the settings of the shared store and the fleet."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    redis_url: Annotated[SecretStr | None, WithNone(RedisUrlType())] = setting(
        None,
        "Redis 6.2 or later, or Valkey, that counts user limits for all processes; not set: each counts in "
        "its own memory.",
        CHOSEN,
        starred=True,
    )
    user_storage: Annotated[SecretStr | None, WithNone(StorageUriType())] = setting(
        None, "The same on a storage of the limits package, for services without Redis.", CHOSEN
    )
    redis_on_error: Annotated[StoreFailureMode, ChoiceType(StoreFailureMode)] = setting(
        StoreFailureMode.LOCAL,
        "Decision while the store is unavailable. local: each process, on its part of the limits; allow: "
        "all are admitted; deny: all are rejected with 503. For USER_STORAGE, too.",
        CHOSEN,
        starred=True,
    )
    service: Annotated[str, KeyText("default")] = setting(
        "default", "Name in keys: services of one name count together.", CHOSEN
    )
    redis_prefix: Annotated[str, KeyText("athr")] = setting(
        "athr", "Prefix of every key. Another one empties all windows.", CHOSEN
    )
    redis_partitions: Annotated[int, Whole(1, 256, "partitions")] = setting(
        16,
        "Slots of a cluster over which users are spread; 64 for more than five nodes. Another number empties "
        "all windows.",
        "measured: 6, 6 and 4 on three nodes, at half the time of 64",
    )
    redis_deadline_s: Annotated[float, Number(STALL_S, 10, "s")] = setting(
        0.05,
        "Longest wait of a request for the store, then REDIS_ON_ERROR decides; for USER_STORAGE, too.",
        "measured: at 5000 decisions per second p99 is 8 ms",
    )
    redis_connect_s: Annotated[float, Number(STALL_S, 60, "s")] = setting(
        0.25, "Longest wait for a connection.", CHOSEN
    )
    redis_read_s: Annotated[float, Number(STALL_S, 60, "s", above=True)] = setting(
        1.0,
        "Time without a reply after which a connection is given up; above REDIS_DEADLINE_S.",
        CHOSEN,
    )
    redis_failures: Annotated[int, Whole(1, 100, "calls")] = setting(
        3,
        "Consecutive failed calls after which the store counts as unavailable; "
        "one refused connection is enough.",
        CHOSEN,
    )
    redis_probe_s: Annotated[float, Number(0.1, 3600, "s")] = setting(
        1.0, "Time from one attempt to reach it again to the next, +-20 %.", CHOSEN
    )
    refused_cache: Annotated[int, Whole(0, 10_000_000, "users")] = setting(
        100_000,
        "Entries of the deny cache: rejected users for which the store is not queried again "
        "before they can be admitted; 0: no cache.",
        "measured: with nine of ten requests rejected the store receives 1.1 % of them",
    )
    fleet: Annotated[bool, Flag()] = setting(
        False,
        "Whether all processes on the Redis share the priority rates, wherever requests arrive; then "
        "WORKERS does not divide them.",
        CHOSEN,
    )
    fleet_gpu: Annotated[bool, Flag()] = setting(
        False,
        "Whether the GPUs of all hosts on the Redis count, for a gateway in front of them; a service that "
        "uses its own only leaves it off.",
        CHOSEN,
    )
    fleet_host: Annotated[str | None, WithNone(KeyText("gpu-7.example.org", HOST_CHARACTERS))] = setting(
        None, "Name under which this host's GPUs are published; not set: the host's own.", CONVENTION
    )
