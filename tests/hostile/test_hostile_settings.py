"""Mutated settings are problems with their places, or values that read back; nothing else is raised."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from autoglm_throttle.settings import PREFIX, ConfigError, Settings, SettingSource, settings_table
from autoglm_throttle.settings.problems import MASK
from tests.hostile.attacks import Attack
from tests.settings.mutations import (
    COLUMNS,
    GUARD,
    HOSTILE,
    PLAN,
    RESOURCE,
    ROUTE,
    full_example,
    mutated_arguments,
    mutated_environ,
    mutated_file,
)
from tests.settings.wrong_values import CALLS

FILE = "throttle.toml"
CONFIG_FILE = PREFIX + "CONFIG_FILE"

COUNTS = pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])


class Faults:
    """Faults of many mutations, by kind, with an example of each."""

    def __init__(self) -> None:
        self.problems = 0
        """Mutations that ended in a `ConfigError`."""
        self.values = 0
        """Mutations that ended in settings."""
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}

    def run(self, label: str, make: Callable[[], object], named: Callable[[str], bool]) -> None:
        """Make the settings, and check the problems or the values.

        Args:
            label: the mutation, printable.
            make: creates settings or a policy.
            named: whether a place names a variable, key or argument of this mutation.
        """
        try:
            made = make()
        except ConfigError as error:
            self.problems += 1
            for fault in faults_of(error, named):
                self._add(fault, label)
        except Exception as error:  # noqa: BLE001 - any other exception is the fault
            self._add(f"raises {type(error).__name__} at {_raised_at(error)}", label)
        else:
            self.values += 1
            self._read_back(label, made)

    def check(self, least: int) -> None:
        """Fail with an example of each kind of fault, or if too few mutations were rejected or accepted."""
        assert not self._counts, "".join(
            f"\n{count}x {kind}: {self._examples[kind]}" for kind, count in self._counts.most_common()
        )
        assert min(self.problems, self.values) >= least

    def _read_back(self, label: str, made: object) -> None:
        try:
            for fault in unread_values(made):
                self._add(fault, label)
        except Exception as error:  # noqa: BLE001 - as above
            self._add(f"cannot be read back: {type(error).__name__} at {_raised_at(error)}", label)

    def _add(self, kind: str, label: str) -> None:
        self._counts[kind] += 1
        self._examples.setdefault(kind, label[-300:])


def faults_of(error: ConfigError, named: Callable[[str], bool]) -> Iterator[str]:
    """Find problems without a place, and texts that cannot be shown."""
    if not error.problems:
        yield "no problem"
    for problem in error.problems:
        if not problem.variable.strip() or not named(problem.variable):
            yield f"place {problem.variable[:60]!a} names nothing"
        if not (str(problem).isprintable() and problem.message):
            yield "message cannot be shown"
    if not all(line.isprintable() for line in str(error).split("\n")) or not repr(error):
        yield "error cannot be shown"


def unread_values(made: object) -> Iterator[str]:
    """Find values that do not read back."""
    if isinstance(made, Settings):
        return unread_settings(made)
    return unread_columns(made)


def unread_settings(settings: Settings) -> Iterator[str]:
    """Find settings whose text is not read as the same value, from the environment or from a file."""
    environ: dict[str, str] = {}
    lines: list[str] = []
    given: dict[str, Any] = {}
    names = [name for name in settings_table() if name != "config_file" and is_set(settings, name)]
    for name in names:
        text = settings.text_of(name)
        if MASK in text or isinstance(settings.value_of(name), SecretStr):
            # Secrets have no text; other settings may need them.
            given[name] = settings.value_of(name)
        elif settings_table()[name].file_only:
            lines.append(f"{name} = {json.dumps(text)}\n")
        else:
            environ[PREFIX + name.upper()] = text
    file = Path("read_back.toml")
    file.write_text("".join(lines), "utf-8")
    try:
        read = Settings.from_env({**environ, CONFIG_FILE: str(file)}, **given)
    except ConfigError as error:
        yield f"text is refused: {error}"
        return
    for name in names:
        if read.value_of(name) != settings.value_of(name):
            yield f"{name} is read back as another value"


def is_set(settings: Settings, name: str) -> bool:
    """Whether a setting has a value that is not its default."""
    value, default = settings.value_of(name), settings_table()[name].default
    return value is not None and (settings.source_of(name) is not SettingSource.DEFAULT or value != default)


def unread_columns(made: object) -> Iterator[str]:
    """Find policies that are not equal to one made of the columns that were set."""
    assert isinstance(made, BaseModel)
    again = type(made)(**{name: getattr(made, name) for name in made.model_fields_set})
    if again != made or not repr(made):
        yield "is read back as another policy"


def naming(names: Iterable[str]) -> Callable[[str], bool]:
    """Make a function that tells whether a place begins with one of the names, in any case."""
    # The text of a problem is cut off behind 2,000 characters.
    known = tuple(_escaped(name)[:1000].upper() for name in names if name)

    def named(place: str) -> bool:
        upper = place.upper()
        # A key of TOML may be shown in quotes.
        return upper.startswith(known) or upper.lstrip('"').startswith(known)

    return named


def naming_in_file(data: bytes) -> Callable[[str], bool]:
    """Make a function that tells whether a place names the variable of the file, or a key in it."""
    try:
        keys = [key or '""' for key in tomllib.loads(data.decode("utf-8"))]
    except (ValueError, RecursionError):
        keys = []
    begins = naming(keys)

    def named(place: str) -> bool:
        file, _, key = place.partition(": ")
        return place == CONFIG_FILE or (file.partition(":")[0] == FILE and begins(key))

    return named


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test, so that files have short names."""
    monkeypatch.chdir(tmp_path)


@COUNTS
def test_mutated_file_is_read_or_reported(attack: Attack, count: int) -> None:
    text, faults = full_example(), Faults()
    for seed in range(count):
        data = mutated_file(Random(seed), text)
        Path(FILE).write_bytes(data)
        label = f"{seed}: {_difference(text, data)}"
        faults.run(label, lambda: Settings.from_env({CONFIG_FILE: FILE}), naming_in_file(data))
    with attack("settings: a mutated TOML file", times=count):
        faults.check(least=count // 50)


@COUNTS
def test_mutated_environment_is_read_or_reported(attack: Attack, count: int) -> None:
    faults = Faults()
    Path(FILE).write_text('[[routes]]\npattern = "/a"\n')
    for seed in range(count):
        environ = mutated_environ(Random(seed))
        names = [
            *environ,
            *(PREFIX + name.upper() for name in settings_table() if _is_near(name, environ)),
            FILE,
        ]
        faults.run(f"{seed}: {environ!a}", lambda: Settings.from_env(environ), naming(names))  # noqa: B023 - called at once
    with attack("settings: a mutated environment", times=count):
        faults.check(least=count // 50)


@COUNTS
@pytest.mark.parametrize("call", COLUMNS)
def test_mutated_arguments_are_read_or_reported(attack: Attack, call: str, count: int) -> None:
    faults = Faults()
    for seed in range(count):
        drawn = mutated_arguments(Random(f"{call} {seed}"), call)
        label = ", ".join(f"{name!a}={text}" for name, (text, _) in drawn.items())
        values: dict[str, Any] = {name: value for name, (_, value) in drawn.items()}
        faults.run(f"{seed}: {label}", lambda: CALLS[call](**values), naming(values))  # noqa: B023 - called at once
    with attack("settings: mutated arguments of objects", times=count):
        faults.check(least=count // 50)


@pytest.mark.slow
@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_value_for_all_settings_is_reported(attack: Attack, label: str) -> None:
    with attack("settings: a hostile object for every setting"):
        values: dict[str, Any] = {name: HOSTILE[label]() for name in COLUMNS["Settings"]}
        with pytest.raises(ConfigError) as caught:
            Settings(**values)
        assert list(faults_of(caught.value, naming(values))) == []
        with pytest.raises(ConfigError) as caught:
            Settings.from_env({"WEB_CONCURRENCY": "4"}, **values)
        assert list(faults_of(caught.value, naming(values))) == []
        columns = ({name: HOSTILE[label]() for name in names} for names in (ROUTE, PLAN, RESOURCE, GUARD))
        route, plan, resource, guard = columns
        tables: dict[str, Any] = {"routes": [route], "plans": {"a": plan}, "guards": {"a": guard}}
        tables["resource_policy"] = resource
        with pytest.raises(ConfigError) as caught:
            Settings(**tables)
        assert list(faults_of(caught.value, naming(tables))) == []


def test_unmutated_settings_read_back() -> None:
    Path(FILE).write_text(full_example(), "utf-8")
    settings = Settings.from_env({CONFIG_FILE: FILE})
    assert len([name for name in settings_table() if is_set(settings, name)]) > 25
    assert (len(settings.routes), len(settings.plans), len(settings.guards)) == (3, 1, 2)
    assert list(unread_settings(settings)) == []


def _is_near(name: str, environ: Iterable[str]) -> bool:
    """Whether a variable has this name in another case: `upper` folds a few letters outside ASCII, too."""
    return any(variable.upper() == PREFIX + name.upper() for variable in environ)


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _raised_at(error: BaseException) -> str:
    """Format file and function of the innermost frame in the package."""
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((Path(code.co_filename), code.co_name))
        traceback = traceback.tb_next
    own = [(path, name) for path, name in frames if "autoglm_throttle" in path.parts]
    path, name = (own or frames)[-1]
    return f"{path.name} {name}"


def _difference(text: str, data: bytes) -> str:
    """Format the lines of a mutated file that are not in the original."""
    before = set(text.encode().splitlines())
    return str([line[:120] for line in data.splitlines() if line not in before])
