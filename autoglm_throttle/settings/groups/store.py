"""Settings of the shared store and the fleet."""

from typing import Annotated, ClassVar, Final

from pydantic import SecretStr

from autoglm_throttle.settings import field_types as f
from autoglm_throttle.settings.field_types import FLAG, FieldTypeError, choice, number, whole, word
from autoglm_throttle.settings.groups.base import Group
from autoglm_throttle.settings.problems import masked_url
from autoglm_throttle.types import STALL_S, StoreFailureMode

URL_CHARACTERS: Final = 2000  # enough for a dozen nodes with long names
KEYS_AT_LEAST: Final = 8  # maximum keys of one request: four limits of a user and four of its address

# A part of a key has no colon, brace or blank, so that two different keys are never one text. A longer one
# would lengthen each key of each user.
_KEY_TEXT: Final = word(r"[A-Za-z0-9_.-]{1,60}", "letters, digits, _ . and -, at most 60", "default")
_HOST: Final = word(r"[A-Za-z0-9_.-]{1,253}", "letters, digits, _ . and -, at most 253", "gpu-7.example.org")


def _redis_url(raw: object) -> SecretStr:
    text = f.secret_text(raw).strip()
    if not text.isprintable() or len(text) > URL_CHARACTERS:
        raise FieldTypeError
    from autoglm_throttle.settings.redis_address import parse_redis_url  # not needed without a Redis

    parse_redis_url(text)
    return SecretStr(text)


_REDIS_URL: Final = f.secret(
    "redis://HOST:PORT/DB, unix:///PATH, redis+sentinel://HOST:PORT,HOST:PORT/NAME or "
    "redis+cluster://HOST:PORT; rediss for TLS",
    "redis://localhost:6379/0",
    _redis_url,
    masked_url,
)


class StoreSettings(Group):
    """Settings of the shared store."""

    environment: ClassVar[str] = "REDIS_URL* REDIS_ON_ERROR* SERVICE REDIS_PREFIX REDIS_DEADLINE_S"

    redis_url: Annotated[SecretStr, _REDIS_URL] | None = None
    """Redis 6.2 or later, or Valkey, that counts user limits for all processes; not set: each counts in its
    own memory."""
    redis_on_error: Annotated[StoreFailureMode, choice(StoreFailureMode)] = StoreFailureMode.LOCAL
    """Decision while the store is unavailable. local: each process, on its part of the limits; allow: all are
    admitted; deny: all are rejected with 503."""
    service: Annotated[str, _KEY_TEXT] = "default"
    """Name in keys: services of one name count together."""
    redis_prefix: Annotated[str, _KEY_TEXT] = "athr"
    """Prefix of every key. Another one empties all windows."""
    redis_deadline_s: Annotated[float, number(STALL_S, 10, "s")] = 0.05
    """Longest wait of a request for the store, then REDIS_ON_ERROR decides. [measured: at 5000 decisions per
    second p99 is 8 ms]"""
    redis_partitions: Annotated[int, whole(1, 256, "partitions")] = 16
    """Slots of a cluster over which users are spread; 64 for more than five nodes. Another number empties all
    windows. [measured: 6, 6 and 4 on three nodes, at half the time of 64]"""
    redis_connect_s: Annotated[float, number(STALL_S, 60, "s")] = 0.25
    """Longest wait for a connection."""
    redis_read_s: Annotated[float, number(STALL_S, 60, "s", above=True)] = 1.0
    """Time without a reply after which a connection is given up; above REDIS_DEADLINE_S."""
    redis_failures: Annotated[int, whole(1, 100, "calls")] = 3
    """Consecutive failed calls after which the store counts as unavailable; one refused connection is
    enough."""
    redis_probe_s: Annotated[float, number(0.1, 3600, "s")] = 1.0
    """Time from one attempt to reach it again to the next, +-20 %."""
    redis_in_flight: Annotated[int, whole(1, 64, "calls")] = 2
    """Calls to the Redis that are in flight at once, in each event loop. [measured: 1, 2 and 4 are equal on
    loopback; the second hides the network latency of the first]"""
    redis_batch_keys: Annotated[int, whole(KEYS_AT_LEAST, 4096, "keys")] = 128
    """Keys in one call at most. [measured: 128 keys are about 0.6 ms of one core of the Redis]"""
    redis_queue: Annotated[int, whole(1, 1_000_000, "decisions")] = 4096
    """Decisions that may wait for the Redis in each event loop; REDIS_ON_ERROR decides those beyond."""
    refused_cache: Annotated[int, whole(0, 10_000_000, "users")] = 100_000
    """Entries of the deny cache: rejected users for which the store is not queried again before they can be
    admitted; 0: no cache. [measured: with nine of ten requests rejected the store receives 1.1 % of them]"""
    refused_cache_s: Annotated[float, number(0.01, 60, "s")] = 1.0
    """Longest lifetime of an entry in the deny cache; after it a raised limit takes effect."""


class FleetSettings(Group):
    """Settings of a fleet of processes on one Redis."""

    environment: ClassVar[str] = "FLEET FLEET_GPU FLEET_HOST"

    fleet: Annotated[bool, FLAG] = False
    """Whether all processes on the Redis share the priority rates, wherever requests arrive; then WORKERS
    does not divide them."""
    fleet_gpu: Annotated[bool, FLAG] = False
    """Whether the GPUs of all hosts on the Redis count, for a gateway in front of them; a service that uses
    its own only leaves it off."""
    fleet_host: Annotated[str, _HOST] | None = None
    """Name under which this host's GPUs are published; not set: the host's own. [convention]"""
    fleet_lease_s: Annotated[float, number(0.1, 60, "s")] = 1.0
    """How long a process of a fleet may keep tokens that it does not need. [simulated]"""
    fleet_heartbeat_s: Annotated[float, number(0.5, 300, "s")] = 5.0
    """Heartbeat interval of a process of a fleet; after three missing heartbeats it counts as lost."""
