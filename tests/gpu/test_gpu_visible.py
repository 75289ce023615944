"""GPUs selected by a list: own rules, and CUDA's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoglm_throttle.gpu.nvml.visible import (
    DeviceInfo,
    DeviceSelection,
    MigInstance,
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
    (MigInstance(0, "MIG-dddd1111", 7, 0), MigInstance(2, "MIG-dddd2222", 9, 1)),
)
DEVICES = [A, B, M]
WHOLE = ((0, None), (1, None), (2, 0), (2, 2))


def test_every_device_and_every_mig_instance() -> None:
    assert select_all(DEVICES) == DeviceSelection(WHOLE)


@pytest.mark.parametrize(
    ("entry", "targets"),
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
def test_an_entry_names(entry: str, targets: list[tuple[int, int | None]]) -> None:
    assert select_listed([entry], DEVICES) == DeviceSelection(tuple(targets))


@pytest.mark.parametrize(
    "entry",
    [
        "3", "-1", "", "x", "0x0", "²", "GPU-", "GPU-aaaa", "GPU-zz", "MIG-", "MIG-dddd", "MIG-zz",
        "MIG-GPU-cccc3333/9/0", "MIG-GPU-aaaa1111/0/0", "MIG-GPU-cccc3333/9", "GPU-aaaa1111/7/0",
    ],
)  # fmt: skip
def test_an_entry_that_names_nothing_or_too_much_is_reported(entry: str) -> None:
    assert select_listed(["0", entry, "1"], DEVICES) == DeviceSelection(((0, None), (1, None)), (entry,))


def test_our_indexes_are_those_of_the_driver() -> None:
    assert select_listed(["1"], [B]) == DeviceSelection(((1, None),))


def test_same_device_twice_is_one() -> None:
    assert select_listed(["0", "GPU-aaaa1"], DEVICES).targets == ((0, None),)


def test_cuda_uses_pci_order_for_equal_names() -> None:
    assert select_cuda("0", DEVICES) == DeviceSelection(((1, None),))
    assert select_cuda(" 1 , GPU-aaaa2222", DEVICES) == DeviceSelection(((0, None), (1, None)))


@pytest.mark.parametrize("value", ["", "-1", "-1,0", "NoDevFiles", "9", "0x1"])
def test_cuda_sees_nothing(value: str) -> None:
    assert select_cuda(value, DEVICES).targets == ()


def test_an_invalid_entry_ends_the_list_of_cuda() -> None:
    assert select_cuda("0,-1,1", DEVICES) == DeviceSelection(((1, None),), ("-1",))


def test_index_is_a_guess_with_different_names() -> None:
    mixed = [A, DeviceInfo(1, "GPU-bb", "L4", "00000000:01:00.0")]
    assert select_cuda("0", mixed).guessed
    assert select_cuda("0,9", mixed).guessed
    assert not select_cuda("0", mixed, order="PCI_BUS_ID").guessed
    assert not select_cuda("GPU-bb", mixed).guessed


@given(st.text(max_size=40))
def test_any_text_is_answered(text: str) -> None:
    assert set(select_cuda(text, DEVICES).targets) <= set(WHOLE)
    assert set(select_listed(text.split(","), DEVICES).targets) <= set(WHOLE)
