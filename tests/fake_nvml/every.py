"""All cases that run over both fakes."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.fake_nvml import cases, cases_errors, cases_gpm, cases_measures
from tests.fake_nvml.cases import World


def cases_of(names: Mapping[str, Any]) -> dict[str, Callable[..., None]]:
    """The cases of a module, by name, in the order in which they stand there."""
    return {
        name.removeprefix("case_"): case for name, case in list(names.items()) if name.startswith("case_")
    }


CASES: dict[str, Callable[[World], None]] = {
    name: case
    for module in (cases, cases_measures, cases_gpm, cases_errors)
    for name, case in cases_of(vars(module)).items()
}
