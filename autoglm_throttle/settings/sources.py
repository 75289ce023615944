"""Loads raw values from code, environment, ``.env`` and ``CONFIG_FILE``, with the source of each."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

from autoglm_throttle.settings.field_types import TRUE_WORDS, text_of
from autoglm_throttle.settings.groups import GROUP_OF, settings_table
from autoglm_throttle.settings.groups.base import PREFIX, Group
from autoglm_throttle.settings.problems import Problem, nearest, quoted_key, repr_for_user, unknown_key

POLICY: Final = "resource_policy"  # name of a table that sets several settings at once
# Key of the service's table ``resource_policy`` -> the setting that it sets.
SETTINGS_OF: Final = {"precision_hint": "precisions"} | {
    name: name for name in ("gpu_memory_ratio", "compute_priority")
}
TABLES: Final = ("routes", "plans", "guards", POLICY)  # a variable cannot hold their shape
NAMES: Final = (*GROUP_OF, *TABLES)
REMOVED: Final = {"user_storage": f"removed; use {PREFIX}REDIS_URL"}  # variable -> what to do
# The variable from which uvicorn, gunicorn and others take their number of workers; default of WORKERS.
PROCESSES: Final = "WEB_CONCURRENCY"

BYTES_AT_MOST: Final = 1 << 20  # a policy of a thousand routes needs a tenth; a wrong path may be a huge log
DEPTH_AT_MOST: Final = 20  # brackets within brackets, and parts of a key; our deepest table needs four
_PART: Final = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_PATH: Final = rf"{_PART}(?:\s*\.\s*{_PART})*"


class SettingSource(StrEnum):
    """Source of a setting's value, the weakest first."""

    DEFAULT = "default"
    CONFIG_FILE = "config_file"
    ENV_FILE = "env_file"
    ENV = "env"
    CODE = "code"


Place = Callable[[str], str]
"""Maps a name, or a place inside its value, to its place in the source; settings with it can be pickled."""


@dataclass(eq=False, repr=False)
class LoadedValues:
    """Raw values before validation, and the problems found while loading them."""

    values: dict[str, object] = field(default_factory=dict)
    sources: dict[str, SettingSource] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Problem] = field(default_factory=list)  # problems, or with UNKNOWN_ENV=warn warnings
    ignored: list[Problem] = field(default_factory=list)  # names and values that have no effect

    def put(self, name: str, value: object, source: SettingSource, place: Place) -> None:
        """Store a value unless a stronger source has set it; sources come strongest first."""
        if name not in self.values:
            self.values[name] = value
            self.sources[name] = source
            self.places[name] = place

    def reject(self, place: str, message: str, hint: str = "") -> None:
        """Report a problem."""
        self.problems.append(Problem(place, message, hint))

    def place(self, where: str) -> str:
        """Return the place of a problem in its source: ``where`` is a name, perhaps with a place inside."""
        name = head_of(where)
        return self.places[name](where) if name in self.places else _variable(where)


def always(place: str, _where: str) -> str:
    """Return one place for any place inside a value."""
    return place


def head_of(where: str) -> str:
    """Return the name of the setting that holds a place: ``routes`` for ``routes[1].cost``."""
    return where.partition(".")[0].partition("[")[0]


def as_table(raw: object) -> dict[str, Any] | None:
    """Copy a mapping with texts as keys; None for anything else."""
    try:
        table: dict[Any, Any] = dict(raw) if isinstance(raw, Mapping) else {None: raw}
    except Exception:  # noqa: BLE001 - a mapping in code may have any fault
        return None
    return table if all(isinstance(key, str) for key in table) else None


def load_arguments(values: Mapping[str, object]) -> LoadedValues:
    """Load values given as arguments."""
    loaded = LoadedValues()
    for name, value in values.items():
        if name not in NAMES:
            loaded.problems.append(_unknown(name, name, NAMES))
        elif name != POLICY:
            loaded.put(name, value, SettingSource.CODE, str)
    _load_resource_policy(loaded, values.get(POLICY), SettingSource.CODE, str)
    return loaded


def load(
    overrides: Mapping[str, object], environ: Mapping[str, str], env_file: str | Path | None
) -> LoadedValues:
    """Load values from code, environment, ``.env`` file and configuration file, the strongest first."""
    loaded = load_arguments(overrides)
    _load_variables(loaded, environ.items(), SettingSource.ENV, "")
    if env_file is not None:
        _load_env_file(loaded, Path(env_file))
    _load_config_file(loaded)
    _load_processes(loaded, environ.get(PROCESSES, ""))
    is_warning = text_of(loaded.values.get("unknown_env")).lower() == "warn"
    (loaded.ignored if is_warning else loaded.problems).extend(loaded.unknown)
    return loaded


def _load_env_file(loaded: LoadedValues, path: Path) -> None:
    from dotenv import dotenv_values

    try:
        pairs = dotenv_values(stream=StringIO(read_regular_file(path).decode("utf-8"))).items()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no regular file, or not UTF-8"
        loaded.reject("env_file", f"cannot be read: {reason}", repr_for_user(str(path)))
    else:
        _load_variables(loaded, pairs, SettingSource.ENV_FILE, f" in {path.name}")


def _load_variables(
    loaded: LoadedValues, pairs: Iterable[tuple[str, str | None]], source: SettingSource, where: str
) -> None:
    values_by_name: dict[str, str] = {}
    for variable, value in pairs:
        name = _setting_name(variable)
        if name is None or not value or not value.strip():
            continue
        if problem := _name_problem(variable, name, where):
            loaded.unknown.append(problem)
        # Names are matched without case, so two variables may name one setting.
        elif values_by_name.setdefault(name, value) != value:
            loaded.reject(_variable(name) + where, "is set twice, in different case, to different values")
        else:
            loaded.put(name, value, source, partial(_variable, where=where))


def _load_config_file(loaded: LoadedValues) -> None:
    raw = loaded.values.get("config_file")
    if raw is None:
        return
    try:
        path = settings_table()["config_file"].field_type.checked(raw)
    except ValueError:
        return  # reported with the other values
    try:
        values, place = read_config_file(path)
    except ValueError as error:
        loaded.reject(loaded.place("config_file"), f"{repr_for_user(str(path))} cannot be used: {error}")
        return
    names = tuple(name for name in NAMES if name != "config_file")
    policy = values.pop(POLICY, None)
    for key, value in values.items():
        if key in names:
            loaded.put(key, value, SettingSource.CONFIG_FILE, place)
        elif key == "config_file":
            loaded.reject(place(key), "a configuration file cannot name another one")
        elif key in REMOVED:
            loaded.unknown.append(Problem(place(key), REMOVED[key]))
        else:
            loaded.unknown.append(_unknown(place(quoted_key(key)), key.lower(), names))
    _load_resource_policy(loaded, policy, SettingSource.CONFIG_FILE, place)


def _load_resource_policy(loaded: LoadedValues, table: object, source: SettingSource, place: Place) -> None:
    """Load the settings of a table ``resource_policy``, which turns ``QUOTAS`` on."""
    if table is None:
        return
    columns = as_table(table.explicit() if isinstance(table, Group) else table)
    if columns is None:
        loaded.reject(place(POLICY), "must be a table", "for example [resource_policy]")
        return
    for key, value in columns.items():
        if key not in SETTINGS_OF:
            problem = unknown_key(key, tuple(SETTINGS_OF)).below(f"{POLICY}.")
            loaded.reject(place(problem.variable), problem.message, problem.hint)
            continue
        name, where = SETTINGS_OF[key], place(f"{POLICY}.{key}")
        if loaded.sources.get(name) is source:
            loaded.reject(where, f"is set beside {name}", "leave one of them out")
        loaded.put(name, value, source, partial(always, where))
    loaded.put("quotas", True, source, partial(always, place(POLICY)))


def _load_processes(loaded: LoadedValues, text: str) -> None:
    """Load the number of processes that the server was told, unless WORKERS is set."""
    # A fleet counts its processes on all hosts, this one's servers among them.
    fleet = loaded.values.get("fleet")
    in_fleet = fleet is True or text_of(fleet).lower() in TRUE_WORDS
    if not text.strip() or "workers" in loaded.values or in_fleet:
        return
    if re.fullmatch("0*([1-9][0-9]{0,3}|10000)", text.strip()):
        loaded.put("workers", text, SettingSource.ENV, partial(always, PROCESSES))
    else:
        # Not our variable: a value for another program stops nothing.
        message, _ = settings_table()["workers"].field_type.describe_error(text, "")
        loaded.ignored.append(Problem(PROCESSES, f"is no default of WORKERS: it {message}"))


def _setting_name(variable: str) -> str | None:
    """Return the name after our prefix, or the setting with a variable that differs by one typo."""
    upper = variable.upper()
    if upper.startswith(PREFIX):
        return upper[len(PREFIX) :].lower()
    # One typo leaves one of these parts of the prefix intact: most variables need no comparison.
    if "AUTOGLM" not in upper and "HROTTLE_" not in upper:
        return None
    return next((name for name in GROUP_OF if _is_one_typo(upper, PREFIX + name.upper())), None)


def _is_one_typo(text: str, right: str) -> bool:
    """Whether one character was changed, left out, added, or swapped with its neighbour."""
    if abs(len(text) - len(right)) > 1:
        return False
    same = next((i for i, (a, b) in enumerate(zip(text, right, strict=False)) if a != b), len(right))
    rest, wanted = text[same:], right[same:]
    swapped = rest[1:2] + rest[:1] + rest[2:]
    return wanted in {rest[1:], swapped} or wanted[1:] in {rest, rest[1:]}


def _name_problem(variable: str, name: str, where: str) -> Problem | None:
    """Return the problem of a variable's name; None if it is the variable of a setting."""
    table = settings_table()
    if name in TABLES:
        return Problem(variable + where, "is not a variable", f"{name} stand in CONFIG_FILE or in code")
    if name in REMOVED:
        return Problem(variable + where, REMOVED[name])
    if name not in table or not variable.upper().startswith(PREFIX):
        return _unknown(variable + where, name, tuple(table), _suggestion)
    hint = f"set {name} in the file that {PREFIX}CONFIG_FILE names, or Settings({name}=...)"
    problem = Problem(variable + where, "is no environment variable any more", hint)
    return problem if table[name].file_only else None


def _unknown(place: str, name: str, known: Sequence[str], write: Callable[[str], str] = str) -> Problem:
    near = next((right for right in known if _is_one_typo(name, right)), None) or nearest(name, known)
    return Problem(place, "is not a known setting", f"did you mean {write(near)}?" if near else "")


def _variable(name: str, where: str = "") -> str:
    head, bracket, rest = name.partition("[")
    table = settings_table()
    return (table[head].variable + bracket + rest if head in table else name) + where


def _suggestion(name: str) -> str:
    return f"{name} in CONFIG_FILE" if settings_table()[name].file_only else _variable(name)


def place_in_file(name: str, lines: Mapping[str, int], key: str) -> str:
    """Format file, line (if it is known) and key: ``throttle.toml:12: routes[1].pattern``."""
    # The key and the tables around it, the longest first.
    ends = [match.end() for match in re.finditer(r'"(?:[^"\\]|\\.)*"|\[\d+\]|[^.\["]+', key)][::-1]
    line = next((f":{lines[key[:end]]}" for end in ends if key[:end] in lines), "")
    return f"{name}{line}: {key}"


def read_config_file(path: Path) -> tuple[dict[str, Any], Place]:
    """Return the values of a TOML file, and the function from names to places; any fault is a ValueError."""
    import tomllib  # not needed without a file

    try:
        data = read_regular_file(path)
    except OSError as error:
        raise ValueError(error.strerror or "cannot be read") from None
    if len(data) > BYTES_AT_MOST:
        raise ValueError(f"longer than {BYTES_AT_MOST} bytes")
    try:
        text = data.decode("utf-8")
        place = partial(place_in_file, path.name, _lines(text))
        return tomllib.loads(text), place
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not TOML: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_regular_file(path: Path) -> bytes:
    """Read a regular file, up to one byte more than allowed, which shows that it is too long."""
    # Without O_NONBLOCK, opening a FIFO waits for its writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - of a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        return file.read(BYTES_AT_MOST + 1)


def _lines(text: str) -> dict[str, int]:
    """Find the lines, from 1, where keys and tables such as ``routes[1]`` begin: tomllib reports none."""
    lines: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    # Text inside a long string may be taken for a key.
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        header = re.match(rf"\[\[?\s*({_PATH})\s*\]", line)
        key = header or re.match(rf"({_PATH})\s*=", line)
        place = "" if header else table
        for part in _parts(key[1]) if key else ():
            place = f"{place}.{part}".removeprefix(".")
            lines.setdefault(place, number)
        if header:
            table = place
        if header and line.startswith("[["):
            counts[table] = counts.get(table, -1) + 1
            table = f"{table}[{counts[table]}]"
            lines.setdefault(table, number)
    return lines


def _parts(path: str) -> Iterator[str]:
    """Yield the parts of a key, each formatted like ``quoted_key`` for any notation in the file."""
    import tomllib

    parts = re.findall(_PART, path)
    if len(parts) > DEPTH_AT_MOST:
        raise ValueError("nested too deeply")
    for part in parts:
        try:
            yield quoted_key(tomllib.loads(f"key = {part}")["key"]) if part[0] in "\"'" else part
        except tomllib.TOMLDecodeError:
            yield part
