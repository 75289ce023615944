"""GPUs selected by a list: own rules, and CUDA's."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.nvml.visible import (
    DeviceInfo,
    select_all,
    select_cuda,
    select_listed,
)

A = DeviceInfo(0, "GPU-aaaa1111", "H100", "00000000:81:00.0")
B = DeviceInfo(1, "GPU-aaaa2222", "H100", "00000000:01:00.0")
M = DeviceInfo(
    2,
    "GPU-cccc3333",
    "H100",
    "00000000:C1:00.0",
    (
        DeviceInfo(2, "MIG-dddd1111", slot=0, gpu_instance=7, compute_instance=0),
        DeviceInfo(2, "MIG-dddd2222", slot=2, gpu_instance=9, compute_instance=1),
    ),
)
DEVICES = [A, B, M]
WHOLE = [(0, None), (1, None), (2, 0), (2, 2)]
Target = tuple[int, int | None]


def targets(selected: Iterable[DeviceInfo]) -> list[Target]:
    return [(one.index, one.slot) for one in selected]


def listed(*entries: str) -> tuple[list[Target], list[str]]:
    """The targets, and the entries that select none."""
    named = select_listed(entries, DEVICES)
    unknown = [entry for entry, found in named.items() if not found]
    return targets(select_all(one for found in named.values() for one in found)), unknown


def cuda(value: str) -> list[Target]:
    return targets(select_cuda(value, DEVICES)[0])


def test_every_device_and_every_mig_instance() -> None:
    assert targets(select_all(DEVICES)) == WHOLE


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("0", [(0, None)]),
        ("2", [(2, 0), (2, 2)]),
        ("GPU-aaaa2222", [(1, None)]),
        ("gpu-AAAA2", [(1, None)]),
        ("GPU-c", [(2, 0), (2, 2)]),
        ("MIG-dddd2222", [(2, 2)]),
        ("MIG-dddd2", [(2, 2)]),
        ("MIG-GPU-cccc3333/9/1", [(2, 2)]),
    ],
)
def test_an_entry_names(entry: str, expected: list[Target]) -> None:
    assert listed(entry) == (expected, [])


@pytest.mark.parametrize(
    "entry",
    [
        "3", "-1", "", "x", "0x0", "²", "GPU-", "GPU-aaaa", "GPU-zz", "MIG-", "MIG-dddd", "MIG-zz",
        "MIG-GPU-cccc3333/9/0", "MIG-GPU-aaaa1111/0/0", "MIG-GPU-cccc3333/9", "GPU-aaaa1111/7/0",
    ],
)  # fmt: skip
def test_an_entry_that_names_nothing_or_too_much_is_reported(entry: str) -> None:
    assert listed("0", entry, "1") == ([(0, None), (1, None)], [entry])


def test_our_indexes_are_those_of_the_driver() -> None:
    assert select_listed(["1"], [B]) == {"1": [B]}


def test_same_device_twice_is_one() -> None:
    assert listed("0", "GPU-aaaa1") == ([(0, None)], [])


def test_cuda_uses_pci_order_for_equal_names() -> None:
    assert cuda("0") == [(1, None)]
    assert cuda(" 1 , GPU-aaaa2222") == [(0, None), (1, None)]


@pytest.mark.parametrize("value", ["", "-1", "-1,0", "NoDevFiles", "9", "0x1"])
def test_cuda_sees_nothing(value: str) -> None:
    assert cuda(value) == []


def test_an_invalid_entry_ends_the_list_of_cuda() -> None:
    assert cuda("0,-1,1") == [(1, None)]


def test_index_is_a_guess_with_different_names() -> None:
    mixed = [A, DeviceInfo(1, "GPU-bb", "L4", "00000000:01:00.0")]
    assert select_cuda("0", mixed)[1]
    assert select_cuda("0,9", mixed)[1]
    assert not select_cuda("0", mixed, order="PCI_BUS_ID")[1]
    assert not select_cuda("GPU-bb", mixed)[1]


def test_device_in_mig_mode_without_instance_is_nothing() -> None:
    empty = [A, DeviceInfo(1, "GPU-aaaa2222", instances=())]
    assert select_listed(["1", "GPU-aaaa2"], empty) == {"1": [], "GPU-aaaa2": []}
    assert select_cuda("GPU-aaaa2,0", empty) == ([], False)


@given(st.text(max_size=40))
def test_any_text_is_answered(text: str) -> None:
    assert set(cuda(text)) <= set(WHOLE)
    assert set(listed(*text.split(","))[0]) <= set(WHOLE)
