"""Formats the place that a value comes from."""

from __future__ import annotations

import re

from autoglm_throttle.settings import Settings, SettingSource
from autoglm_throttle.settings.sources import head_of

_LINE = re.compile(r":\d+")


def place_text(settings: Settings, where: str) -> str:
    """Return the place of a value: a variable, file and line, ``argument`` or ``default``.

    Args:
        settings: with the sources of its values.
        where: the name of a setting or table, perhaps with a place inside, such as ``guards.vector-db``.
    """
    match settings.source_of(head_of(where)):
        case SettingSource.DEFAULT:
            return "default"
        case SettingSource.CODE:
            return "argument"
        case SettingSource.CONFIG_FILE:
            file = settings.loading.config_file
            name = "" if file is None else file.name
            line = _LINE.match(settings.place_of(where).removeprefix(name))
            return name + (line[0] if line else "")
        case _:
            return settings.place_of(where)
