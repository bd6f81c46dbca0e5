# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Two ends joined: a connected pair of queue pairs, requester and responder."""

from conformance.outcome import WorkCompletion
from conformance.scenarios import LinkKind, Side
from conformance.verbs.end import End
from conformance.verbs.names import e
from conformance.verbs.queues import QUEUE_DEPTH, Queues


class Link:
    """A connected pair of queue pairs that takes lists of up to `sges` segments.

    `ends` are in a process each or both in this one, on one PD or on two. Raises UnsupportedError where a device lacks
    the transport, the queue or the API; PyverbsError for what else goes wrong.
    """

    depth = QUEUE_DEPTH
    """work requests that each of its queues takes"""

    def __init__(self, requester: End, responder: End, kind: LinkKind, sges: int) -> None:
        self.kind = kind
        self.patience = requester.domain.patience
        self.in_flight: set[int] = set()
        """the wr_ids of what is posted and not yet collected"""
        self.early: dict[Side, list[WorkCompletion]] = {side: [] for side in Side}
        """completions that came while others were waited for"""
        self.ends = {Side.REQUESTER: requester, Side.RESPONDER: responder}
        self.responder: Queues = responder.queues(kind, Side.RESPONDER, sges)
        try:
            self.requester: Queues = requester.queues(kind, Side.REQUESTER, sges)
        except BaseException:
            self.responder.close()
            raise
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self.responder.connect(self.requester.as_peer())
        self.requester.connect(self.responder.as_peer())

    def end_in_error(self) -> None:
        """Both queue pairs to the error state, which flushes what is posted. Raises PyverbsRDMAError."""
        self.responder.move_to(e.IBV_QPS_ERR)
        self.requester.move_to(e.IBV_QPS_ERR)

    def reset(self) -> None:
        """Both queue pairs to the reset state, which forgets what is posted, and connected again.

        Raises PyverbsRDMAError.
        """
        self.requester.move_to(e.IBV_QPS_RESET)
        self.responder.move_to(e.IBV_QPS_RESET)
        self._connect()

    def close(self) -> None:
        """Destroy both sides; what a device in error refuses to destroy is left to its context."""
        self.requester.close()
        self.responder.close()
