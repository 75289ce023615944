"""Loads raw values from code, environment, ``.env`` and ``CONFIG_FILE``, with the source of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_settings import DotEnvSettingsSource

from autoglm_throttle.settings.field import PREFIX, SettingSource
from autoglm_throttle.settings.fields import SETTINGS, SettingFields, UnknownNames
from autoglm_throttle.settings.problems import Problem, nearest, repr_for_user, unknown_keys

if TYPE_CHECKING:
    from autoglm_throttle.settings.config_file import ConfigFile

POLICY = "resource_policy"
"""Name of a table that sets several settings at once."""

TABLES = ("routes", "plans", "guards", POLICY)
"""Names for ``CONFIG_FILE`` or code only: a variable cannot hold their shape."""

NAMES = (*SETTINGS, *TABLES)


@dataclass
class LoadedValues:
    """Raw values before validation, and the problems found while loading them."""

    values: dict[str, object] = field(default_factory=dict)
    sources: dict[str, SettingSource] = field(default_factory=dict)
    places: dict[str, Callable[[str], str]] = field(default_factory=dict)
    """Name -> function that maps the name, or a place inside its value, to its place in the source."""
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Problem] = field(default_factory=list)
    """Unknown names: errors, or with ``UNKNOWN_ENV=warn`` warnings."""

    def put(self, name: str, value: object, source: SettingSource, place: Callable[[str], str]) -> None:
        """Store a value unless a stronger source has set it; sources come strongest first."""
        if name not in self.values:
            self.values[name] = value
            self.sources[name] = source
            self.places[name] = place

    def place(self, where: str) -> str:
        """Place of a problem in its source: ``where`` is a name, perhaps with a place inside."""
        name = where.partition(".")[0].partition("[")[0]
        return self.places[name](where) if name in self.places else _variable(where)


def load_arguments(values: Mapping[str, object]) -> LoadedValues:
    """Load values given as arguments."""
    loaded = LoadedValues()
    for name, value in values.items():
        if name == POLICY:
            continue
        if name in NAMES:
            loaded.put(name, value, SettingSource.CODE, str)
        else:
            loaded.problems.append(_unknown(name, name, NAMES, str))
    _load_resource_policy(loaded, values.get(POLICY), SettingSource.CODE, str)
    return loaded


def load(
    overrides: Mapping[str, object], environ: Mapping[str, str], env_file: str | Path | None
) -> LoadedValues:
    """Load values from code, the environment, the ``.env`` file and the configuration file, in this order."""
    loaded = load_arguments(overrides)
    _load_environment(loaded, environ.items(), SettingSource.ENV, "")
    if env_file is not None:
        path = Path(env_file)
        try:
            path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "not UTF-8"
            loaded.problems.append(Problem("env_file", f"cannot be read: {reason}", repr_for_user(str(path))))
        else:
            pairs = DotEnvSettingsSource(SettingFields, env_file=path, case_sensitive=True).env_vars
            _load_environment(loaded, pairs.items(), SettingSource.ENV_FILE, f" in {path.name}")
    _load_config_file(loaded)
    if _is_warning_only(loaded.values.get("unknown_env")):
        return loaded
    loaded.problems += loaded.unknown
    loaded.unknown = []
    return loaded


def _load_environment(
    loaded: LoadedValues, pairs: Iterable[tuple[str, str | None]], source: SettingSource, where: str
) -> None:
    values_by_name: dict[str, str] = {}
    for variable, value in pairs:
        name = _setting_name(variable)
        if name is None or not (value or "").strip():
            continue
        if name not in SETTINGS or not variable.upper().startswith(PREFIX):
            loaded.unknown.append(_unknown_variable(variable, name, where))
        elif SETTINGS[name].tuning:
            loaded.problems.append(_tuning_variable(variable, name, where))
        # Names are matched without case, so two variables may name one setting.
        elif values_by_name.setdefault(name, value or "") != value:
            message = "is set twice, in different case, to different values"
            loaded.problems.append(Problem(_variable(name) + where, message))
        else:
            loaded.put(name, value, source, lambda place: _variable(place) + where)


def _load_config_file(loaded: LoadedValues) -> None:
    raw = loaded.values.get("config_file")
    if raw is None:
        return
    try:
        path = SETTINGS["config_file"].field_type.parse(raw)
    except ValueError:
        return
    from autoglm_throttle.settings.config_file import read_config_file

    try:
        file = read_config_file(path)
    except ValueError as error:
        loaded.problems.append(
            Problem(loaded.place("config_file"), f"{repr_for_user(str(path))} cannot be used: {error}")
        )
        return
    _load_file_values(loaded, file)


def _load_file_values(loaded: LoadedValues, file: ConfigFile) -> None:
    names = tuple(name for name in NAMES if name != "config_file")
    for key, value in file.values.items():
        if key == POLICY:
            continue
        if key in names:
            loaded.put(key, value, SettingSource.CONFIG_FILE, file.place)
        elif key == "config_file":
            loaded.problems.append(Problem(file.place(key), "a configuration file cannot name another one"))
        else:
            loaded.unknown.append(_unknown(file.place(key), key.lower(), names, str))
    _load_resource_policy(loaded, file.values.get(POLICY), SettingSource.CONFIG_FILE, file.place)


def _load_resource_policy(
    loaded: LoadedValues, table: object, source: SettingSource, place: Callable[[str], str]
) -> None:
    """Load the settings of a table ``resource_policy``, which turns ``QUOTAS`` on."""
    if table is None:
        return
    from autoglm_throttle.settings.resource_policy import SETTINGS_OF, ResourcePolicy

    if isinstance(table, ResourcePolicy):
        table = table.explicit_fields()
    if not isinstance(table, Mapping):
        loaded.problems.append(Problem(place(POLICY), "must be a table", "for example [resource_policy]"))
        return
    loaded.problems += [
        Problem(place(f"{POLICY}.{fault.variable}"), fault.message, fault.hint)
        for fault in unknown_keys(table, tuple(SETTINGS_OF))
    ]
    for key, name in SETTINGS_OF.items():
        if key not in table:
            continue
        where = place(f"{POLICY}.{key}")
        if loaded.sources.get(name) is source:
            loaded.problems.append(Problem(where, f"is set beside {name}", "leave one of them out"))
        loaded.put(name, table[key], source, lambda _, where=where: where)  # type: ignore[misc]
    loaded.put("quotas", True, source, lambda _: place(POLICY))


def _setting_name(variable: str) -> str | None:
    """Name after our prefix, or the setting with a variable that differs by one typo.

    A mistyped prefix would otherwise leave a limit unset without notice.
    """
    upper = variable.upper()
    if upper.startswith(PREFIX):
        return upper[len(PREFIX) :].lower()
    return next((name for name in SETTINGS if _is_one_typo(upper, PREFIX + name.upper())), None)


def _is_one_typo(text: str, right: str) -> bool:
    """Whether one character was changed, left out, added, or swapped with its neighbour."""
    if abs(len(text) - len(right)) > 1:
        return False
    same = next((i for i, (a, b) in enumerate(zip(text, right, strict=False)) if a != b), len(right))
    rest, wanted = text[same:], right[same:]
    swapped = rest[1:2] + rest[:1] + rest[2:]
    return wanted in {rest[1:], swapped} or wanted[1:] in {rest, rest[1:]}


def _unknown_variable(variable: str, name: str, where: str) -> Problem:
    if name in TABLES:
        return Problem(variable + where, "is not a variable", f"{name} stand in CONFIG_FILE or in code")
    return _unknown(variable + where, name, tuple(SETTINGS), _suggestion)


def _tuning_variable(variable: str, name: str, where: str) -> Problem:
    hint = f"set it in CONFIG_FILE, for example {name} = {SETTINGS[name].default_text}"
    return Problem(variable + where, "is not read from the environment", hint)


def _unknown(place: str, name: str, known: tuple[str, ...], write: Callable[[str], str]) -> Problem:
    near = next((right for right in known if _is_one_typo(name, right)), None) or nearest(name, known)
    return Problem(place, "is not a known setting", f"did you mean {write(near)}?" if near else "")


def _variable(name: str) -> str:
    head, bracket, rest = name.partition("[")
    return SETTINGS[head].variable + bracket + rest if head in SETTINGS else name


def _suggestion(name: str) -> str:
    return f"{name} in CONFIG_FILE" if SETTINGS[name].tuning else _variable(name)


def _is_warning_only(raw: object) -> bool:
    try:
        return bool(SETTINGS["unknown_env"].field_type.parse(raw) is UnknownNames.WARN)
    except ValueError:
        return False
