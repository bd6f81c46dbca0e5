# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Structs and numbers of the kernel's interface, with the layout that the installed headers give them.

`...;` leaves the layout to the compiler: only the fields that are used here are named.
"""

from __future__ import annotations

import functools
from typing import Any

from conformance import native

# enum ib_uverbs_write_cmds; those with EX_ are extended commands of the same numbers.
_COMMANDS = (
    "GET_CONTEXT", "QUERY_DEVICE", "QUERY_PORT", "ALLOC_PD", "DEALLOC_PD", "CREATE_AH", "DESTROY_AH", "REG_MR",
    "REREG_MR", "DEREG_MR", "ALLOC_MW", "DEALLOC_MW", "CREATE_COMP_CHANNEL", "CREATE_CQ", "RESIZE_CQ", "DESTROY_CQ",
    "CREATE_QP", "QUERY_QP", "MODIFY_QP", "DESTROY_QP", "CREATE_SRQ", "MODIFY_SRQ", "QUERY_SRQ", "DESTROY_SRQ",
    "OPEN_XRCD", "CLOSE_XRCD", "CREATE_XSRQ", "OPEN_QP",
)  # fmt: skip

_CAP = """uint32_t max_send_wr; uint32_t max_recv_wr; uint32_t max_send_sge; uint32_t max_recv_sge;
    uint32_t max_inline_data;"""
_QP_ATTR = """
    uint32_t qkey; uint32_t rq_psn; uint32_t sq_psn; uint32_t dest_qp_num; uint32_t qp_access_flags;
    uint16_t pkey_index; uint16_t alt_pkey_index; uint8_t qp_state; uint8_t cur_qp_state; uint8_t path_mtu;
    uint8_t path_mig_state; uint8_t max_rd_atomic; uint8_t max_dest_rd_atomic; uint8_t min_rnr_timer; uint8_t port_num;
    uint8_t timeout; uint8_t retry_cnt; uint8_t rnr_retry; uint8_t alt_port_num; uint8_t alt_timeout;"""

_TYPES = f"""
struct ib_uverbs_cmd_hdr {{ uint32_t command; uint16_t in_words; uint16_t out_words; ...; }};
struct ib_uverbs_ex_cmd_hdr {{ uint64_t response; uint16_t provider_in_words; uint16_t provider_out_words; ...; }};
struct ib_uverbs_async_event_desc {{ uint64_t element; uint32_t event_type; ...; }};
struct ib_uverbs_comp_event_desc {{ uint64_t cq_handle; ...; }};

struct ib_uverbs_get_context {{ uint64_t response; ...; }};
struct ib_uverbs_get_context_resp {{ uint32_t async_fd; uint32_t num_comp_vectors; ...; }};
struct ib_uverbs_query_device {{ uint64_t response; ...; }};
struct ib_uverbs_query_device_resp {{
    uint64_t fw_ver; uint64_t node_guid; uint64_t sys_image_guid; uint64_t max_mr_size; uint64_t page_size_cap;
    uint32_t vendor_id; uint32_t vendor_part_id; uint32_t hw_ver; uint32_t max_qp; uint32_t max_qp_wr;
    uint32_t device_cap_flags; uint32_t max_sge; uint32_t max_sge_rd; uint32_t max_cq; uint32_t max_cqe;
    uint32_t max_mr; uint32_t max_pd; uint32_t max_qp_rd_atom; uint32_t max_res_rd_atom;
    uint32_t max_qp_init_rd_atom; uint32_t atomic_cap; uint32_t max_mw; uint32_t max_ah; uint32_t max_srq;
    uint32_t max_srq_wr; uint32_t max_srq_sge; uint16_t max_pkeys; uint8_t local_ca_ack_delay;
    uint8_t phys_port_cnt; ...;
}};
struct ib_uverbs_ex_query_device {{ uint32_t comp_mask; ...; }};
struct ib_uverbs_ex_query_device_resp {{
    struct ib_uverbs_query_device_resp base; uint32_t response_length; uint64_t timestamp_mask;
    uint64_t hca_core_clock; uint64_t device_cap_flags_ex; ...;
}};
struct ib_uverbs_query_port {{ uint64_t response; uint8_t port_num; ...; }};
struct ib_uverbs_query_port_resp {{
    uint32_t port_cap_flags; uint32_t max_msg_sz; uint32_t gid_tbl_len; uint16_t pkey_tbl_len; uint16_t lid;
    uint16_t sm_lid; uint8_t state; uint8_t max_mtu; uint8_t active_mtu; uint8_t lmc; uint8_t max_vl_num;
    uint8_t active_width; uint8_t active_speed; uint8_t phys_state; uint8_t link_layer; uint8_t flags; ...;
}};
struct ib_uverbs_alloc_pd {{ uint64_t response; ...; }};
struct ib_uverbs_alloc_pd_resp {{ uint32_t pd_handle; ...; }};
struct ib_uverbs_dealloc_pd {{ uint32_t pd_handle; ...; }};
struct ib_uverbs_open_xrcd {{ uint64_t response; uint32_t fd; uint32_t oflags; ...; }};
struct ib_uverbs_open_xrcd_resp {{ uint32_t xrcd_handle; ...; }};
struct ib_uverbs_close_xrcd {{ uint32_t xrcd_handle; ...; }};
struct ib_uverbs_reg_mr {{
    uint64_t response; uint64_t start; uint64_t length; uint64_t hca_va; uint32_t pd_handle; uint32_t access_flags; ...;
}};
struct ib_uverbs_reg_mr_resp {{ uint32_t mr_handle; uint32_t lkey; uint32_t rkey; ...; }};
struct ib_uverbs_rereg_mr {{
    uint64_t response; uint32_t mr_handle; uint32_t flags; uint64_t start; uint64_t length; uint64_t hca_va;
    uint32_t pd_handle; uint32_t access_flags; ...;
}};
struct ib_uverbs_rereg_mr_resp {{ uint32_t lkey; uint32_t rkey; ...; }};
struct ib_uverbs_dereg_mr {{ uint32_t mr_handle; ...; }};
struct ib_uverbs_alloc_mw {{ uint64_t response; uint32_t pd_handle; uint8_t mw_type; ...; }};
struct ib_uverbs_alloc_mw_resp {{ uint32_t mw_handle; uint32_t rkey; ...; }};
struct ib_uverbs_dealloc_mw {{ uint32_t mw_handle; ...; }};
struct ib_uverbs_create_comp_channel {{ uint64_t response; ...; }};
struct ib_uverbs_create_comp_channel_resp {{ uint32_t fd; ...; }};
struct ib_uverbs_create_cq {{
    uint64_t response; uint64_t user_handle; uint32_t cqe; uint32_t comp_vector; int32_t comp_channel; ...;
}};
struct ib_uverbs_ex_create_cq {{
    uint64_t user_handle; uint32_t cqe; uint32_t comp_vector; int32_t comp_channel; uint32_t comp_mask;
    uint32_t flags; ...;
}};
struct ib_uverbs_create_cq_resp {{ uint32_t cq_handle; uint32_t cqe; ...; }};
struct ib_uverbs_ex_create_cq_resp {{ struct ib_uverbs_create_cq_resp base; uint32_t response_length; ...; }};
struct ib_uverbs_resize_cq {{ uint64_t response; uint32_t cq_handle; uint32_t cqe; ...; }};
struct ib_uverbs_resize_cq_resp {{ uint32_t cqe; ...; }};
struct ib_uverbs_destroy_cq {{ uint64_t response; uint32_t cq_handle; ...; }};
struct ib_uverbs_destroy_cq_resp {{ uint32_t comp_events_reported; uint32_t async_events_reported; ...; }};
struct ib_uverbs_create_qp {{
    uint64_t response; uint64_t user_handle; uint32_t pd_handle; uint32_t send_cq_handle; uint32_t recv_cq_handle;
    uint32_t srq_handle; {_CAP} uint8_t sq_sig_all; uint8_t qp_type; uint8_t is_srq; ...;
}};
struct ib_uverbs_ex_create_qp {{
    uint64_t user_handle; uint32_t pd_handle; uint32_t send_cq_handle; uint32_t recv_cq_handle;
    uint32_t srq_handle; {_CAP} uint8_t sq_sig_all; uint8_t qp_type; uint8_t is_srq;
    uint32_t comp_mask; uint32_t create_flags; ...;
}};
struct ib_uverbs_create_qp_resp {{ uint32_t qp_handle; uint32_t qpn; {_CAP} ...; }};
struct ib_uverbs_ex_create_qp_resp {{ struct ib_uverbs_create_qp_resp base; uint32_t response_length; ...; }};
struct ib_uverbs_open_qp {{ uint64_t response; uint64_t user_handle; uint32_t pd_handle; uint32_t qpn; ...; }};
struct ib_uverbs_qp_dest {{
    uint8_t dgid[16]; uint32_t flow_label; uint16_t dlid; uint8_t sgid_index; uint8_t hop_limit; uint8_t traffic_class;
    uint8_t sl; uint8_t src_path_bits; uint8_t static_rate; uint8_t is_global; uint8_t port_num; ...;
}};
struct ib_uverbs_query_qp {{ uint64_t response; uint32_t qp_handle; uint32_t attr_mask; ...; }};
struct ib_uverbs_query_qp_resp {{
    struct ib_uverbs_qp_dest dest; struct ib_uverbs_qp_dest alt_dest; {_CAP} {_QP_ATTR}
    uint8_t sq_draining; uint8_t sq_sig_all; ...;
}};
struct ib_uverbs_modify_qp {{
    struct ib_uverbs_qp_dest dest; struct ib_uverbs_qp_dest alt_dest; uint32_t qp_handle; uint32_t attr_mask; {_QP_ATTR}
    uint8_t en_sqd_async_notify; ...;
}};
struct ib_uverbs_ex_modify_qp {{ struct ib_uverbs_modify_qp base; uint32_t rate_limit; ...; }};
struct ib_uverbs_ex_modify_qp_resp {{ uint32_t response_length; ...; }};
struct ib_uverbs_destroy_qp {{ uint64_t response; uint32_t qp_handle; ...; }};
struct ib_uverbs_destroy_qp_resp {{ uint32_t events_reported; ...; }};
struct ib_uverbs_global_route {{
    uint8_t dgid[16]; uint32_t flow_label; uint8_t sgid_index; uint8_t hop_limit; uint8_t traffic_class; ...;
}};
struct ib_uverbs_ah_attr {{
    struct ib_uverbs_global_route grh; uint16_t dlid; uint8_t sl; uint8_t src_path_bits; uint8_t static_rate;
    uint8_t is_global; uint8_t port_num; ...;
}};
struct ib_uverbs_create_ah {{
    uint64_t response; uint64_t user_handle; uint32_t pd_handle; struct ib_uverbs_ah_attr attr; ...;
}};
struct ib_uverbs_create_ah_resp {{ uint32_t ah_handle; ...; }};
struct ib_uverbs_destroy_ah {{ uint32_t ah_handle; ...; }};
struct ib_uverbs_create_srq {{
    uint64_t response; uint64_t user_handle; uint32_t pd_handle; uint32_t max_wr; uint32_t max_sge;
    uint32_t srq_limit; ...;
}};
struct ib_uverbs_create_xsrq {{
    uint64_t response; uint64_t user_handle; uint32_t srq_type; uint32_t pd_handle; uint32_t max_wr; uint32_t max_sge;
    uint32_t srq_limit; uint32_t xrcd_handle; uint32_t cq_handle; ...;
}};
struct ib_uverbs_create_srq_resp {{ uint32_t srq_handle; uint32_t max_wr; uint32_t max_sge; uint32_t srqn; ...; }};
struct ib_uverbs_modify_srq {{
    uint32_t srq_handle; uint32_t attr_mask; uint32_t max_wr; uint32_t srq_limit; ...;
}};
struct ib_uverbs_query_srq {{ uint64_t response; uint32_t srq_handle; ...; }};
struct ib_uverbs_query_srq_resp {{ uint32_t max_wr; uint32_t max_sge; uint32_t srq_limit; ...; }};
struct ib_uverbs_destroy_srq {{ uint64_t response; uint32_t srq_handle; ...; }};
struct ib_uverbs_destroy_srq_resp {{ uint32_t events_reported; ...; }};

struct mlx5_ib_alloc_ucontext_req_v2 {{ uint32_t total_num_bfregs; uint8_t max_cqe_version; ...; }};
struct mlx5_ib_alloc_ucontext_resp {{
    uint32_t qp_tab_size; uint32_t bf_reg_size; uint32_t tot_bfregs; uint32_t cache_line_size; uint16_t max_sq_desc_sz;
    uint16_t max_rq_desc_sz; uint32_t max_send_wqebb; uint32_t max_recv_wr; uint32_t max_srq_recv_wr;
    uint16_t num_ports; uint32_t comp_mask; uint32_t response_length; uint8_t cqe_version; uint8_t cmds_supp_uhw;
    uint8_t eth_min_inline; uint32_t log_uar_size; uint32_t num_uars_per_page; uint32_t dump_fill_mkey; ...;
}};
struct mlx5_ib_alloc_pd_resp {{ uint32_t pdn; ...; }};
struct mlx5_ib_create_cq {{ uint64_t buf_addr; uint64_t db_addr; uint32_t cqe_size; uint8_t cqe_comp_en; ...; }};
struct mlx5_ib_create_cq_resp {{ uint32_t cqn; ...; }};
struct mlx5_ib_resize_cq {{ uint64_t buf_addr; uint16_t cqe_size; ...; }};
struct mlx5_ib_create_srq {{ uint64_t buf_addr; uint64_t db_addr; uint32_t flags; uint32_t uidx; ...; }};
struct mlx5_ib_create_srq_resp {{ uint32_t srqn; ...; }};
struct mlx5_ib_create_qp {{
    uint64_t buf_addr; uint64_t db_addr; uint32_t sq_wqe_count; uint32_t rq_wqe_count; uint32_t rq_wqe_shift;
    uint32_t flags; uint32_t uidx; ...;
}};
struct mlx5_ib_create_qp_resp {{ uint32_t bfreg_index; ...; }};
struct mlx5_ib_create_ah_resp {{ uint32_t response_length; uint8_t dmac[6]; ...; }};
struct mlx5_ib_query_device_resp {{ uint32_t comp_mask; uint32_t response_length; ...; }};
"""

_CONSTANTS = (
    *(f"IB_USER_VERBS_CMD_{name}" for name in _COMMANDS),
    "IB_USER_VERBS_CMD_FLAG_EXTENDED",
    "IB_USER_VERBS_CMD_COMMAND_MASK",
    "MLX5_QP_FLAG_SIGNATURE",
    "MLX5_QP_FLAG_SCATTER_CQE",
    "MLX5_QP_FLAG_ALLOW_SCATTER_CQE",
    "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY",
    "MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE",
    "MLX5_USER_CMDS_SUPP_UHW_CREATE_AH",
)

_SOURCE = """
#include <stdint.h>
#include <stddef.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
"""


@functools.cache
def load() -> Any:
    """The cffi module. Raises native.BuildError if the headers are not there."""
    constants = "".join(f"static const uint32_t {name};\n" for name in _CONSTANTS)
    return native.extension("connectx_headers", _TYPES + constants, _SOURCE)


def commands() -> dict[int, str]:
    """Number of a command -> its name in lower case, as in create_cq."""
    lib = load().lib
    return {getattr(lib, f"IB_USER_VERBS_CMD_{name}"): name.lower() for name in _COMMANDS}
