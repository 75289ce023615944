"""Combines environment, files and code into one frozen ``Settings``, once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import PrivateAttr

from autoglm_throttle.settings import sources
from autoglm_throttle.settings.groups import GROUP_OF, GROUPS, Groups, settings_table
from autoglm_throttle.settings.groups.base import DEFAULTS, Group, validate
from autoglm_throttle.settings.groups.gpu import stale_at_least_s
from autoglm_throttle.settings.policies import GuardPolicy, PlanPolicy, Tables
from autoglm_throttle.settings.problems import ConfigError, Problem
from autoglm_throttle.settings.route_policy import RoutePolicy
from autoglm_throttle.settings.sources import LoadedValues, SettingSource
from autoglm_throttle.types.identity import SHARED_KEY

if TYPE_CHECKING:
    from typing import Unpack

    import autoglm_throttle.settings.values as v

_log = logging.getLogger("autoglm_throttle")

_ORDER: Final = {name: position for position, name in enumerate(sources.NAMES)}


class Settings(Groups):
    """The settings that a ``Throttle`` enforces; frozen. Each mechanism receives its group.

    ``Settings(...)`` takes ready values or texts as in the environment, and reads no environment and
    no file. ``Settings.from_env()`` is the only reader.

    Args:
        values: settings by their flat names, such as ``rate_high_rps=200, user_limit="100/minute"``.

    Raises:
        ConfigError: with one problem for each invalid value.
    """

    routes: tuple[RoutePolicy, ...]
    plans: Mapping[str, PlanPolicy]
    guards: Mapping[str, GuardPolicy]

    _loaded: LoadedValues = PrivateAttr(default_factory=LoadedValues)

    def __init__(self, **values: Unpack[v.SettingValues]) -> None:
        loaded = sources.load_arguments(values)
        if values.get("config_file") is not None:
            hint = "Settings.from_env(config_file=...) reads it"
            loaded.problems.append(Problem("config_file", "is not read by Settings(...)", hint))
        self.__setstate__(_made(loaded, type(self)).__getstate__())

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str] | None = None,
        env_file: str | Path | None = None,
        **overrides: Unpack[v.SettingValues],
    ) -> Settings:
        """Read the environment, a ``.env`` file and the file that ``CONFIG_FILE`` names.

        Overrides win over the environment, that over ``.env``, that over the configuration file. Names are
        matched without case, an empty value means "not set".

        Args:
            environ: the environment; None: that of the process.
            env_file: a ``.env`` file that must exist; None: none is read. ``${NAME}`` in it is
                replaced from the environment of the process.
            overrides: settings by their flat names.

        Raises:
            ConfigError: with one problem for each invalid value, in the order of the settings page.
        """
        loaded = sources.load(overrides, os.environ if environ is None else environ, env_file)
        for problem in loaded.ignored:
            _log.warning("ignored: %s", problem)
        return _made(loaded, cls)

    def __setattr__(self, name: str, value: object) -> None:
        # The error of pydantic would print the value, which may be a secret.
        raise AttributeError(f"Settings.{name} cannot be set: settings are frozen")

    def source_of(self, name: str) -> SettingSource:
        """Return the source of a setting's value.

        Raises:
            KeyError: there is no setting of this name.
        """
        if name not in _ORDER:
            raise KeyError(name)
        return self._loaded.sources.get(name, SettingSource.DEFAULT)

    def place_of(self, where: str) -> str:
        """Return the place of a name in its source: a variable, an argument, or file, line and key.

        The name may have a place inside its value, such as ``routes[1].cost``.
        """
        return self._loaded.place(where)

    def value_of(self, name: str) -> Any:  # noqa: ANN401 - of any setting
        """Return the value of a setting by its flat name.

        Raises:
            KeyError: there is no setting of this name.
        """
        return getattr(getattr(self, GROUP_OF[name]), settings_table()[name].field)

    def text_of(self, name: str) -> str:
        """Format a value as in the environment, with secrets masked; empty if not set.

        Raises:
            KeyError: there is no setting of this name.
        """
        return settings_table()[name].field_type.public_text(self.value_of(name))

    @property
    def identity_key(self) -> bytes | None:
        """The key of identities: ``KEY_SECRET``, else a fixed one with a shared store; None: a random one."""
        if (secret := self.callers.key_secret) is not None:
            return secret.get_secret_value().encode()
        # With a random key per process, shared windows would count one caller under several names.
        return None if self.store.redis_url is None else SHARED_KEY

    @property
    def ignored(self) -> tuple[Problem, ...]:
        """Names and values without effect, such as those that ``UNKNOWN_ENV=warn`` permitted."""
        return tuple(self._loaded.ignored)

    def __eq__(self, other: object) -> bool:
        """Whether all values are equal, whether or not their sources are."""
        if not isinstance(other, Settings):
            return NotImplemented
        # Of a group the values count, not whether they were set.
        pairs = ((getattr(self, name), getattr(other, name)) for name in type(self).model_fields)
        return all((dict(a) == dict(b)) if isinstance(a, Group) else (a == b) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]  # explicit for type checkers: plans are a dict

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        table = settings_table()
        for name in _ORDER:
            if name in self._loaded.sources:
                yield name, self.text_of(name) if name in table else getattr(self, name)


def _made(loaded: LoadedValues, kind: type[Settings]) -> Settings:
    # The groups are validated already; validating this model would build the schemas of all of them.
    settings = kind.model_construct(**_validate(loaded))
    # They hold secrets as plain text, and objects that may not be picklable.
    loaded.values.clear()
    object.__setattr__(settings, "__pydantic_private__", {"_loaded": loaded})
    return settings


def _validate(loaded: LoadedValues) -> dict[str, Any]:
    """Validate all values, and return the fields of ``Settings``, or raise every problem at once."""
    parts, problems, wrong = _groups(loaded.values)
    if loaded.values:
        from autoglm_throttle.settings.checks import failed_checks  # not needed for the defaults alone

        tables = Tables(loaded.values)
        problems += tables.problems
        problems += failed_checks(parts, tables, loaded.values, wrong)
        parts |= {"routes": tables.routes, "plans": tables.plans, "guards": tables.guards}
        _derive(parts, loaded)
    if problems or loaded.problems:
        problems.sort(key=lambda problem: _ORDER[sources.head_of(problem.variable)])
        placed = [Problem(loaded.place(p.variable), p.message, p.hint) for p in problems]
        raise ConfigError([*placed, *loaded.problems])
    return parts


def _groups(given: Mapping[str, object]) -> tuple[dict[str, Any], list[Problem], set[str]]:
    """Return the groups by attribute, the problems of single values, and the names of the invalid ones."""
    parts: dict[str, Any] = {"routes": (), "plans": {}, "guards": {}}
    problems: list[Problem] = []
    wrong: set[str] = set()
    for attribute, group in GROUPS.items():
        raw = {field: given[name] for field in group.model_fields if (name := group.prefix + field) in given}
        made: Group | None = group.model_construct()
        if raw:
            made, found, fields = validate(group, raw, DEFAULTS)
            problems += [problem.below(group.prefix) for problem in found]
            wrong |= {group.prefix + field for field in fields}
        parts[attribute] = made
    return parts, problems, wrong


def _derive(parts: dict[str, Any], loaded: LoadedValues) -> None:
    """Set the defaults that follow from other values."""
    if "quotas" not in loaded.values and any(route.resource_policy for route in parts["routes"]):
        parts["quota"] = parts["quota"].model_copy(update={"quotas": True})
        _follow(loaded, "quotas", "routes")
    for rate in ("breaker_failure_rate", "breaker_slow_rate"):
        if rate in loaded.values and "breaker_trip" not in loaded.values:
            _follow(loaded, "breaker_trip", rate)  # the group itself has put the rule in force
    if "sample_interval_s" in loaded.values and "degrade_load_stale_s" not in loaded.values:
        stale_s = stale_at_least_s(parts["gpu"].sample_interval_s)
        parts["degradation"] = parts["degradation"].model_copy(update={"load_stale_s": stale_s})


def _follow(loaded: LoadedValues, name: str, cause: str) -> None:
    """Give a setting the source and the place of the one that it follows from."""
    loaded.sources[name] = loaded.sources[cause]
    loaded.places[name] = partial(sources.always, loaded.place(cause))
