# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A scenario of each kind, with null and ordinary segments."""

from conformance.scenarios import Operation, Scenario, Transport, mem, null

SEND = Scenario(Transport.RC, Operation.SEND, (null(5), mem(3), null(2)), (mem(4), null(1), mem(16)))
UD = Scenario(Transport.UD, Operation.SEND, (mem(8),), (null(30), mem(18)))
READ = Scenario(Transport.RC, Operation.RDMA_READ, (), (null(4), mem(6)))
WRITE = Scenario(Transport.RC, Operation.RDMA_WRITE, (null(4), mem(6)), ())
SWAP = Scenario(Transport.RC, Operation.CMP_AND_SWP, (), (null(8),))
ADD = Scenario(Transport.RC, Operation.FETCH_AND_ADD, (), (mem(8),))
TOO_LONG = Scenario(Transport.RC, Operation.SEND, (mem(9),), (null(4), mem(4)))
