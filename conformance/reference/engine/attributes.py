# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a device says of itself: struct ibv_device_attr and struct ibv_port_attr, field by field."""

from dataclasses import dataclass, field

from . import abi
from .objects import GID

_ODP_UD = abi.ODP_SUPPORT_SEND | abi.ODP_SUPPORT_RECV | abi.ODP_SUPPORT_SRQ_RECV
_ODP_UC = _ODP_UD | abi.ODP_SUPPORT_WRITE
_ODP_RC = _ODP_UC | abi.ODP_SUPPORT_READ | abi.ODP_SUPPORT_ATOMIC


@dataclass
class DeviceAttributes:
    fw_ver: str = "1.0.0"
    node_guid: int = 0
    sys_image_guid: int = 0
    max_mr_size: int = 2**64 - 1
    page_size_cap: int = 0xFFFFF000
    vendor_id: int = 0xFFFFFF
    vendor_part_id: int = 1
    hw_ver: int = 1
    max_qp: int = 4096
    max_qp_wr: int = 16384
    device_cap_flags: int = (
        abi.DEVICE_BAD_PKEY_CNTR
        | abi.DEVICE_BAD_QKEY_CNTR
        | abi.DEVICE_CURR_QP_STATE_MOD
        | abi.DEVICE_SYS_IMAGE_GUID
        | abi.DEVICE_RC_RNR_NAK_GEN
        | abi.DEVICE_SRQ_RESIZE
        | abi.DEVICE_N_NOTIFY_CQ
        | abi.DEVICE_MEM_WINDOW
        | abi.DEVICE_XRC
        | abi.DEVICE_MEM_MGT_EXTENSIONS
        | abi.DEVICE_MEM_WINDOW_TYPE_2B
    )
    max_sge: int = 32
    max_sge_rd: int = 32
    max_cq: int = 4096
    max_cqe: int = 65536
    max_mr: int = 65536
    max_pd: int = 4096
    max_qp_rd_atom: int = 16
    max_res_rd_atom: int = 65536
    max_qp_init_rd_atom: int = 16
    atomic_cap: int = abi.ATOMIC_HCA
    max_mw: int = 16384
    max_ah: int = 65536
    max_srq: int = 4096
    max_srq_wr: int = 16384
    max_srq_sge: int = 32
    max_pkeys: int = 1
    local_ca_ack_delay: int = 15
    phys_port_cnt: int = 1
    odp_general_caps: int = abi.ODP_SUPPORT | abi.ODP_SUPPORT_IMPLICIT
    rc_odp_caps: int = _ODP_RC
    uc_odp_caps: int = _ODP_UC
    ud_odp_caps: int = _ODP_UD
    xrc_odp_caps: int = _ODP_RC
    max_inline_data: int = 512
    """Bytes; no field of the struct, but a limit like the others."""


@dataclass
class PortAttributes:
    state: int = abi.PORT_ACTIVE
    max_mtu: int = abi.MTU_4096
    active_mtu: int = abi.MTU_1024
    gid_tbl_len: int = 16
    port_cap_flags: int = 1 << 16 | 1 << 26
    max_msg_sz: int = 2**31
    pkey_tbl_len: int = 1
    lid: int = 0
    sm_lid: int = 0
    lmc: int = 0
    max_vl_num: int = 1
    active_width: int = 2
    active_speed: int = 32
    phys_state: int = 5
    link_layer: int = abi.LINK_LAYER_ETHERNET
    flags: int = 0
    gids: list[GID] = field(default_factory=list)
    pkeys: list[int] = field(default_factory=lambda: [0xFFFF])

    @property
    def mtu(self) -> int:
        """In bytes."""
        return int(128 << self.active_mtu)
