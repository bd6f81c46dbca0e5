# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What the reference device costs: us per operation through stock pyverbs, and how many trivial verbs that is.

Run as `python -m benchmarks.reference_cost`. The times are the least of several rounds; the ratios compare what was
measured in the same run, so that they can be set against those of another machine.
"""

import sys
import time
from collections.abc import Callable

from conformance import reference

ROUNDS, CALLS = 7, 1000


def cost(operation: Callable[[], object]) -> float:
    """us per call, the least of ROUNDS rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            operation()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def main() -> None:
    reference.load()
    from conformance.verbs.names import e
    from tests.pairs import Pair

    with Pair() as pair:
        left, right = pair.left, pair.right
        send, write = left.wr(e.IBV_WR_SEND, left.sge()), left.wr(e.IBV_WR_RDMA_WRITE, left.sge())
        from pyverbs.wr import RecvWR

        receive = RecvWR(num_sge=1, sg=[right.sge()])

        def sends() -> None:
            right.qp.post_recv(receive)
            left.qp.post_send(send)
            left.cq.poll(1)
            right.cq.poll(1)

        def writes() -> None:
            left.qp.post_send(write)
            left.cq.poll(1)

        trivial = cost(lambda: left.context.query_pkey(1, 0))
        print(f"trivial verb (ibv_query_pkey)                  {trivial:6.1f} us")
        for name, operation in (
            ("64-byte RC SEND, receive and both completions", sends),
            ("64-byte RC RDMA WRITE and its completion", writes),
        ):
            spent = cost(operation)
            print(f"{name:46} {spent:6.1f} us  {spent / trivial:5.1f} trivial verbs")
    if errors := reference.errors():
        sys.exit("\n".join(errors))


if __name__ == "__main__":
    main()
