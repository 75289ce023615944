"""``load compare``: two reports side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoglm_throttle.cli.lab.faults import Faults, Unusable
from autoglm_throttle.cli.lab.judging import is_json
from autoglm_throttle.cli.output import FINE, write, write_json
from autoglm_throttle.traffic.errors import TrafficError
from autoglm_throttle.traffic.report import Document, compare, comparison, loads


def compare_files(names: Sequence[str], form: str | None) -> int:
    """Print two reports side by side.

    Args:
        names: of the files with their JSON.
        form: ``text`` or ``json``.

    Raises:
        Unusable: other than two files, or one that cannot be read.
    """
    if len(names) != 2:
        raise Unusable(["compare: takes the JSON of two reports, A and B"])
    faults = Faults()
    as_json = faults.read("--format", is_json, form, other=False)
    first, second = (faults.read("compare", _read, name, None) for name in names)
    faults.end()
    if first is None or second is None:  # pragma: no cover - then there was a fault
        raise AssertionError
    if as_json:
        write_json(comparison(first, second))
    else:
        write("\n".join(compare(first, second)))
    return FINE


def _read(name: str) -> Document:
    try:
        return loads(Path(name).read_text("utf-8"))
    except UnicodeDecodeError:
        raise TrafficError(f"{name}: not a text") from None
    except TrafficError as error:
        raise TrafficError(f"{name}: {error}") from None
