"""Combines environment, files and code into one frozen ``Settings``, once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import PrivateAttr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from autoglm_throttle.settings.field import SettingSource
from autoglm_throttle.settings.field_types import FieldType, FieldTypeError, read_all
from autoglm_throttle.settings.fields import SETTINGS, SettingFields
from autoglm_throttle.settings.guard_policy import (
    GUARD_KEYS,
    GuardPolicies,
    GuardPolicy,
    guard_from_table,
)
from autoglm_throttle.settings.plan_policy import PlanPolicies, PlanPolicy, plan_from_table
from autoglm_throttle.settings.problems import ConfigError, Problem, quoted_key
from autoglm_throttle.settings.route_policy import RoutePolicy, route_from_table
from autoglm_throttle.settings.sources import LoadedValues, load, load_arguments
from autoglm_throttle.settings.tables import Tables
from autoglm_throttle.types import UserLimit
from autoglm_throttle.types.identity import SHARED_KEY

_log = logging.getLogger("autoglm_throttle")


class _Routes(FieldType[tuple[RoutePolicy, ...]]):
    allowed = "a list of route policies"
    example = '[[routes]] with pattern = "/v1/*"'

    def parse(self, raw: object) -> tuple[RoutePolicy, ...]:
        """Accept policies, or TOML tables."""
        if isinstance(raw, (str, bytes, Mapping)) or not isinstance(raw, Iterable):
            raise FieldTypeError
        routes: list[RoutePolicy] = []
        problems: list[Problem] = []
        names: dict[str, int] = {}
        for position, part in enumerate(raw):
            try:
                route = part if isinstance(part, RoutePolicy) else route_from_table(part)
            except ConfigError as error:
                problems += [Problem(f"[{position}]{p.variable}", p.message, p.hint) for p in error.problems]
                continue
            if names.setdefault(route.name, position) != position:
                place = f"[{position}].name"
                problems.append(Problem(place, f"{route.name} is already the name of [{names[route.name]}]"))
            routes.append(route)
        if problems:
            raise ConfigError(problems)
        return tuple(routes)


FIELD_TYPES: Final[Mapping[str, FieldType[Any]]] = {
    **{name: known.field_type for name, known in SETTINGS.items()},
    "routes": _Routes(),
    "plans": Tables(PlanPolicy, plan_from_table, PlanPolicies, "plans by name", "[plans.gold]"),
    "guards": Tables(GuardPolicy, guard_from_table, GuardPolicies, "guards by name", "[guards.vector-db]"),
}


class Settings(SettingFields):
    """The settings that a ``Throttle`` enforces; frozen.

    ``Settings(...)`` takes ready values or texts as in the environment, and reads no environment and
    no file. ``Settings.from_env()`` is the only reader.

    Args:
        loaded: the values that ``from_env`` has loaded; leave it out.
        values: settings by lower-case name, such as ``rate_high_rps=200, user_limit="100/minute"``.

    Raises:
        ConfigError: with one problem for each invalid value.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        defer_build=True, frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True
    )

    routes: tuple[RoutePolicy, ...] = ()
    plans: PlanPolicies = PlanPolicies()
    guards: GuardPolicies = GuardPolicies()

    _sources: dict[str, SettingSource] = PrivateAttr(default_factory=dict)
    _ignored: tuple[Problem, ...] = PrivateAttr(default=())
    _route_places: tuple[str, ...] = PrivateAttr(default=())
    _guard_places: dict[tuple[str, str], str] = PrivateAttr(default_factory=dict)

    def __init__(self, loaded: LoadedValues | None = None, /, **values: Any) -> None:  # noqa: ANN401 - parsed and checked by field types
        if loaded is None:
            loaded = load_arguments(values)
            if values.get("config_file") is not None:
                hint = "Settings.from_env(config_file=...) reads it"
                loaded.problems.append(Problem("config_file", "is not read by Settings(...)", hint))
        super().__init__(**_validate(loaded))
        self._sources = dict(loaded.sources)
        self._ignored = tuple(loaded.unknown)
        self._route_places = tuple(loaded.place(f"routes[{n}]") for n in range(len(self.routes)))
        self._guard_places = {
            (name, key): loaded.place(f"guards.{quoted_key(name)}.{key}")
            for name in self.guards
            for key in GUARD_KEYS
        }

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        env_file: str | Path | None = None,
        **overrides: Any,  # noqa: ANN401 - parsed and checked by field types
    ) -> Settings:
        """Read the environment, a ``.env`` file and the file that ``CONFIG_FILE`` names.

        Overrides win over the environment, the environment over ``.env``, that over the configuration
        file. Names are matched without case, an empty value means "not set".

        Args:
            environ: the environment; None: that of the process.
            env_file: a ``.env`` file that must exist; None: none is read. ``${NAME}`` in it is
                replaced from the environment of the process.
            overrides: settings by lower-case name.

        Raises:
            ConfigError: with one problem for each invalid value, in the order of the settings page.
        """
        loaded = load(overrides, os.environ if environ is None else environ, env_file)
        settings = cls(loaded)
        for problem in loaded.unknown:
            _log.warning("ignored, because of UNKNOWN_ENV=warn: %s", problem)
        return settings

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the names are pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - as above
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Limit pydantic to the passed values: ``from_env`` reads the sources, and reports all problems."""
        return (init_settings,)

    def source_of(self, name: str) -> SettingSource:
        """Return the source of a setting's value.

        Raises:
            KeyError: there is no setting of this name.
        """
        if name not in FIELD_TYPES:
            raise KeyError(name)
        return self._sources.get(name, SettingSource.DEFAULT)

    def text_of(self, name: str) -> str:
        """Format a value as in the environment, with secrets masked; empty if not set.

        Raises:
            KeyError: there is no variable of this name.
        """
        return SETTINGS[name].field_type.public(getattr(self, name))

    @property
    def rates_rps(self) -> tuple[float, float, float]:
        """Requests per second for high, mid and low, for all workers together."""
        return (self.rate_high_rps, self.rate_mid_rps, self.rate_low_rps)

    @property
    def user_limits(self) -> tuple[tuple[UserLimit, ...], ...]:
        """The user limits for high, mid and low; an empty tuple means none."""
        own = (self.user_limit_high, self.user_limit_mid, self.user_limit_low)
        return tuple(self.user_limit if limits is None else limits for limits in own)

    @property
    def shared(self) -> bool:
        """Whether user limits are counted in a store that several processes share."""
        return self.redis_url is not None or self.user_storage is not None

    @property
    def identity_key(self) -> bytes | None:
        """The key of identities: ``KEY_SECRET``, else one fixed key for all processes with a shared store.

        None: each process draws its own key.
        """
        if self.key_secret is not None:
            return self.key_secret.get_secret_value().encode()
        # With a random key per process, shared windows would count one caller under several names.
        return SHARED_KEY if self.shared else None

    @property
    def ignored(self) -> tuple[Problem, ...]:
        """Unknown names that ``UNKNOWN_ENV=warn`` permitted."""
        return self._ignored

    @property
    def route_places(self) -> tuple[str, ...]:
        """Source place of each route policy: file and line, or its place in the argument."""
        return self._route_places

    def guard_place(self, name: str, key: str) -> str:
        """Source place of a guard's key: file and line, or its place in the argument.

        Raises:
            KeyError: there is no such guard, or no such key.
        """
        return self._guard_places[name, key]

    def __eq__(self, other: object) -> bool:
        """Whether all values are equal, whether or not their sources are."""
        return isinstance(other, Settings) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]  # explicit for type checkers: plans are a dict

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [
            (name, FIELD_TYPES[name].repr_value(getattr(self, name)))
            for name in FIELD_TYPES
            if name in self._sources
        ]


def _validate(loaded: LoadedValues) -> dict[str, Any]:
    from autoglm_throttle.settings.checks import (  # loads every check: not needed for an import alone
        failed_checks,
        stale_at_least_s,
    )

    given = loaded.values
    values, problems = read_all(FIELD_TYPES, given)
    wrong = given.keys() - values.keys()
    defaults = {name: info.default for name, info in Settings.model_fields.items()}
    problems += failed_checks(defaults | values, given, set(wrong))
    if "quotas" not in given and any(route.resource_policy for route in values.get("routes", ())):
        values["quotas"] = True
        loaded.sources["quotas"] = loaded.sources["routes"]
    if "sample_interval_s" in values:
        values.setdefault("degrade_load_stale_s", stale_at_least_s(values["sample_interval_s"]))
    if problems or loaded.problems:
        order = {name: position for position, name in enumerate(FIELD_TYPES)}
        problems.sort(key=lambda problem: order[problem.variable.partition(".")[0].partition("[")[0]])
        placed = [Problem(loaded.place(p.variable), p.message, p.hint) for p in problems]
        raise ConfigError([*placed, *loaded.problems])
    return values
