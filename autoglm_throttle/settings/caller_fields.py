"""Settings of callers and of responses: identity, priority, exempt paths, response headers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import SecretStr
from pydantic_settings import SettingsConfigDict

from autoglm_throttle.settings.caller_field_types import (
    HeaderName,
    IdentityType,
    Proxy,
    RequestPath,
    Secret,
)
from autoglm_throttle.settings.field import CHOSEN, CONVENTION, setting
from autoglm_throttle.settings.field_types import ChoiceType, Listed, Number, PriorityType, Whole, WithNone
from autoglm_throttle.settings.store_fields import StoreSettings
from autoglm_throttle.types import Priority


class HeaderTrust(StrEnum):
    """How far a client's priority header is trusted."""

    LOWER = "lower"
    PROXY = "proxy"
    ANY = "any"
    OFF = "off"


class HeaderStyle(StrEnum):
    """Rate limit headers in responses."""

    AUTO = "auto"
    IETF = "ietf"
    LEGACY = "legacy"
    NONE = "none"


class CallerSettings(StoreSettings):
    """Declarations of the settings of callers and responses."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(defer_build=True)

    identity: Annotated[str, IdentityType()] = setting(
        "address", "How callers are identified.", CHOSEN, starred=True
    )
    key_secret: Annotated[SecretStr | None, WithNone(Secret())] = setting(
        None,
        "Key of the hash that identifies a caller, the same for all processes; not set: each process "
        "draws a random key, or with a shared store uses a fixed, publicly known key.",
        CHOSEN,
        starred=True,
    )
    trusted_proxies: Annotated[tuple[str, ...], Listed(Proxy())] = setting(
        (), "Peers from which X-Forwarded-For is trusted; not set: no header is read.", CHOSEN, starred=True
    )
    ipv6_prefix: Annotated[int, Whole(32, 128, "bits")] = setting(
        64, "IPv6 callers with the same first bits are one caller.", "a subscriber usually holds a /64"
    )
    priority_default: Annotated[Priority, PriorityType()] = setting(
        Priority.MID, "The priority of a request that states none.", CHOSEN, starred=True
    )
    priority_header: Annotated[str, HeaderName()] = setting(
        "x-priority", "The header in which a client states a priority.", CONVENTION
    )
    priority_header_trust: Annotated[HeaderTrust, ChoiceType(HeaderTrust)] = setting(
        HeaderTrust.LOWER,
        "lower: it may only lower; proxy: a trusted proxy may raise; any: everyone may; off: not read.",
        CHOSEN,
    )
    deadline_header: Annotated[str | None, WithNone(HeaderName())] = setting(
        None,
        "A header in which a client states how soon it needs the answer: seconds, 1.5, or 800ms; it may "
        "shorten the objective, never lengthen it. Not set: none is read.",
        CHOSEN,
    )
    exempt_paths: Annotated[tuple[str, ...], Listed(RequestPath())] = setting(
        ("/health", "/healthz", "/livez", "/readyz", "/metrics"),
        "Paths that are never charged nor rejected, compared as received. A value replaces the whole list.",
        CONVENTION,
        starred=True,
    )
    headers: Annotated[HeaderStyle, ChoiceType(HeaderStyle)] = setting(
        HeaderStyle.AUTO,
        "RateLimit headers of draft-ietf-httpapi-ratelimit-headers-11 (ietf, auto), "
        "those and X-RateLimit (legacy), or none.",
        CHOSEN,
    )
    retry_after_max_s: Annotated[float, Number(1, 31_536_000, "s")] = setting(
        120.0, "Longest Retry-After that is sent.", "client SDKs give up above 120 s"
    )
    retry_jitter: Annotated[float, Number(0, 1, "share")] = setting(
        0.1,
        "Share by which Retry-After is lengthened at random, "
        "so that rejected callers do not return together.",
        CHOSEN,
    )
