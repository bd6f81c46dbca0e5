# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The IBV_* constants, however pyverbs was built."""

from enum import IntEnum, IntFlag

import pytest

from conformance.verbs.names import collect


@pytest.mark.parametrize("kind", [IntEnum, IntFlag])
def test_members_of_scoped_enums_are_plain_ints(kind: type) -> None:
    status = kind("ibv_wc_status", {"IBV_WC_SUCCESS": 0, "IBV_WC_LOC_LEN_ERR": 1, "IBV_WC_AGAIN": 1, "IBV_WC_LAST": 6})
    names = collect({"ibv_wc_status": status})
    assert vars(names) == {"IBV_WC_SUCCESS": 0, "IBV_WC_LOC_LEN_ERR": 1, "IBV_WC_AGAIN": 1, "IBV_WC_LAST": 6}
    assert {type(value) for value in vars(names).values()} == {int}


def test_names_of_the_module_count_too_and_lose_their_underscore() -> None:
    held = {"IBV_QPT_RC": 2, "_IBV_DEVICE_RAW_SCATTER_FCS": 1 << 34, "IBV_TEXT": "text", "RDMA_PS_TCP": 1, "int": int}
    assert vars(collect(held)) == {"IBV_QPT_RC": 2, "IBV_DEVICE_RAW_SCATTER_FCS": 1 << 34}
