"""Loads raw values from code, environment, ``.env`` and ``CONFIG_FILE``, with the source of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_settings import DotEnvSettingsSource

from autoglm_throttle.settings.field import PREFIX, Source
from autoglm_throttle.settings.fields import SETTINGS, Fields, UnknownNames
from autoglm_throttle.settings.problem import Problem, nearest, shown, unknown_keys

if TYPE_CHECKING:
    from autoglm_throttle.settings.config_file import ConfigFile

POLICY = "resource_policy"
"""Name of a table that sets several settings at once."""

TABLES = ("routes", "plans", "guards", POLICY)
"""Names for ``CONFIG_FILE`` or code only: a variable cannot hold their shape."""

NAMES = (*SETTINGS, *TABLES)


@dataclass
class Gathered:
    """Raw values before validation, and the problems found while loading them."""

    values: dict[str, object] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    places: dict[str, Callable[[str], str]] = field(default_factory=dict)
    """Name -> function that maps the name, or a place inside its value, to its place in the source."""
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Problem] = field(default_factory=list)
    """Unknown names: errors, or with ``UNKNOWN_ENV=warn`` warnings."""

    def put(self, name: str, value: object, source: Source, place: Callable[[str], str]) -> None:
        """Store a value unless a stronger source has set it; sources come strongest first."""
        if name not in self.values:
            self.values[name] = value
            self.sources[name] = source
            self.places[name] = place

    def place(self, where: str) -> str:
        """Place of a problem in its source: ``where`` is a name, perhaps with a place inside."""
        name = where.partition(".")[0].partition("[")[0]
        return self.places[name](where) if name in self.places else _variable(where)


def from_code(values: Mapping[str, object]) -> Gathered:
    """Load values given as arguments."""
    gathered = Gathered()
    for name, value in values.items():
        if name == POLICY:
            continue
        if name in NAMES:
            gathered.put(name, value, Source.CODE, str)
        else:
            gathered.problems.append(_unknown(name, name, NAMES, str))
    _take_policy(gathered, values.get(POLICY), Source.CODE, str)
    return gathered


def from_everywhere(
    overrides: Mapping[str, object], environ: Mapping[str, str], env_file: str | Path | None
) -> Gathered:
    """Load values from code, the environment, the ``.env`` file and the configuration file, in this order."""
    gathered = from_code(overrides)
    _take_environment(gathered, environ.items(), Source.ENV, "")
    if env_file is not None:
        path = Path(env_file)
        try:
            path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "not UTF-8"
            gathered.problems.append(Problem("env_file", f"cannot be read: {reason}", shown(str(path))))
        else:
            pairs = DotEnvSettingsSource(Fields, env_file=path, case_sensitive=True).env_vars
            _take_environment(gathered, pairs.items(), Source.ENV_FILE, f" in {path.name}")
    _take_config_file(gathered)
    if _only_warned(gathered.values.get("unknown_env")):
        return gathered
    gathered.problems += gathered.unknown
    gathered.unknown = []
    return gathered


def _take_environment(
    gathered: Gathered, pairs: Iterable[tuple[str, str | None]], source: Source, where: str
) -> None:
    seen: dict[str, str] = {}
    for variable, value in pairs:
        name = _own_name(variable)
        if name is None or not (value or "").strip():
            continue
        if name not in SETTINGS or not variable.upper().startswith(PREFIX):
            gathered.unknown.append(_unknown_variable(variable, name, where))
        elif SETTINGS[name].tuning:
            gathered.problems.append(_tuning_variable(variable, name, where))
        # Names are matched without case, so two variables may name one setting.
        elif seen.setdefault(name, value or "") != value:
            gathered.problems.append(
                Problem(_variable(name) + where, "is set twice, in different case, to different values")
            )
        else:
            gathered.put(name, value, source, lambda place: _variable(place) + where)


def _take_config_file(gathered: Gathered) -> None:
    raw = gathered.values.get("config_file")
    if raw is None:
        return
    try:
        path = SETTINGS["config_file"].form.parse(raw)
    except ValueError:
        return
    from autoglm_throttle.settings.config_file import read_config_file

    try:
        file = read_config_file(path)
    except ValueError as error:
        gathered.problems.append(
            Problem(gathered.place("config_file"), f"{shown(str(path))} cannot be used: {error}")
        )
        return
    _take_file_values(gathered, file)


def _take_file_values(gathered: Gathered, file: ConfigFile) -> None:
    names = tuple(name for name in NAMES if name != "config_file")
    for key, value in file.values.items():
        if key == POLICY:
            continue
        if key in names:
            gathered.put(key, value, Source.CONFIG_FILE, file.place)
        elif key == "config_file":
            gathered.problems.append(Problem(file.place(key), "a configuration file cannot name another one"))
        else:
            gathered.unknown.append(_unknown(file.place(key), key.lower(), names, str))
    _take_policy(gathered, file.values.get(POLICY), Source.CONFIG_FILE, file.place)


def _take_policy(gathered: Gathered, table: object, source: Source, place: Callable[[str], str]) -> None:
    """Load the settings of a table ``resource_policy``, which turns ``QUOTAS`` on."""
    if table is None:
        return
    from autoglm_throttle.settings.resource_policy import SETTINGS_OF, ResourcePolicy

    if isinstance(table, ResourcePolicy):
        table = table.given()
    if not isinstance(table, Mapping):
        gathered.problems.append(Problem(place(POLICY), "must be a table", "for example [resource_policy]"))
        return
    gathered.problems += [
        Problem(place(f"{POLICY}.{fault.variable}"), fault.message, fault.hint)
        for fault in unknown_keys(table, tuple(SETTINGS_OF))
    ]
    for key, name in SETTINGS_OF.items():
        if key not in table:
            continue
        where = place(f"{POLICY}.{key}")
        if gathered.sources.get(name) is source:
            gathered.problems.append(Problem(where, f"is set beside {name}", "leave one of them out"))
        gathered.put(name, table[key], source, lambda _, where=where: where)  # type: ignore[misc]
    gathered.put("quotas", True, source, lambda _: place(POLICY))


def _own_name(variable: str) -> str | None:
    """Name after our prefix, or the setting with a variable that differs by one typo.

    A mistyped prefix would otherwise leave a limit unset without notice.
    """
    upper = variable.upper()
    if upper.startswith(PREFIX):
        return upper[len(PREFIX) :].lower()
    return next((name for name in SETTINGS if _one_slip(upper, PREFIX + name.upper())), None)


def _one_slip(text: str, right: str) -> bool:
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
    return _unknown(variable + where, name, tuple(SETTINGS), _suggested)


def _tuning_variable(variable: str, name: str, where: str) -> Problem:
    hint = f"set it in CONFIG_FILE, for example {name} = {SETTINGS[name].default_text}"
    return Problem(variable + where, "is not read from the environment", hint)


def _unknown(place: str, name: str, known: tuple[str, ...], write: Callable[[str], str]) -> Problem:
    near = next((right for right in known if _one_slip(name, right)), None) or nearest(name, known)
    return Problem(place, "is not a known setting", f"did you mean {write(near)}?" if near else "")


def _variable(name: str) -> str:
    head, bracket, rest = name.partition("[")
    return SETTINGS[head].variable + bracket + rest if head in SETTINGS else name


def _suggested(name: str) -> str:
    return f"{name} in CONFIG_FILE" if SETTINGS[name].tuning else _variable(name)


def _only_warned(raw: object) -> bool:
    try:
        return bool(SETTINGS["unknown_env"].form.parse(raw) is UnknownNames.WARN)
    except ValueError:
        return False
