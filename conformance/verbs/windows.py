# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Binding memory windows (ibv_bind_mw(3), IBTA 10.6.7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pyverbs_error import PyverbsRDMAError

from conformance.outcome import in_words
from conformance.scenarios import LinkKind, Poll, Post, Queue, Side, Transport
from conformance.verbs.closing import close
from conformance.verbs.link import Link
from conformance.verbs.names import e
from conformance.verbs.null_mr import errno_name
from conformance.verbs.pair import Pair
from conformance.verbs.remote_window import ACCESS, post_bind
from conformance.verdicts import Failure

TYPES = {e.IBV_MW_TYPE_1: "type-1", e.IBV_MW_TYPE_2: "type-2"}
WR_ID = 1
KIND = LinkKind(Transport.RC, Queue.RQ, Post.POST_SEND, Poll.POLL_CQ)
BEFORE, ASKED = "before the bind", "that the bind asked for"


@contextmanager
def bind(pair: Pair, mw_type: int, mr: MR, address: int, length: int) -> Iterator[tuple[dict[str, int], str | None]]:
    """Bind a new window of a pair of queue pairs of its own to a stretch of `mr`.

    Gives the keys by which a peer might reach it (the window's own of before, and the one that the bind asked for), and
    how it was refused; None: the bind completed well. Raises Failure if it was neither refused nor completed.
    """
    pair.face(otherwise=Side.RESPONDER)
    link = pair.link(KIND)
    mw = MW(pair.pd, mw_type)
    before = mw.rkey
    info = MWBindInfo(mr, address, length, ACCESS)
    asked, refused = _post(link, mw, info)
    if refused is None:
        refused = _completed(pair, link)
        if refused:
            pair.drop(link)  # an error in the completion is one of the queue pair; a refusal at once is not
        if mw_type == e.IBV_MW_TYPE_1:
            asked = mw.rkey  # ibv_bind_mw sets it
    try:
        yield {BEFORE: before, ASKED: asked}, refused
    finally:
        close(mw)
        pair.drop(link)


def _post(link: Link, mw: MW, info: MWBindInfo) -> tuple[int, str | None]:
    """Post the bind on the side that owns the memory; the rkey that it asks for, and how it was refused at once."""
    if mw.type == e.IBV_MW_TYPE_1:
        try:
            link.responder.qp.bind_mw(mw, MWBind(info, e.IBV_SEND_SIGNALED, WR_ID))
        except PyverbsRDMAError as error:
            return mw.rkey, f"ibv_bind_mw returned {errno_name(error.error_code)}"
        return mw.rkey, None
    rkey, refused = post_bind(link.responder.qp, mw, info, WR_ID)
    return rkey, f"ibv_post_send returned {errno_name(refused.error_code)}" if refused else None


def _completed(pair: Pair, link: Link) -> str | None:
    """Wait for the bind's completion on the responder's CQ; how it was refused, if it was."""
    completions = link.responder.cq.wait([WR_ID], pair.patience)
    if not completions:
        waited = in_words(pair.patience)
        raise Failure(f"{pair.where}\n=> the bind was neither refused nor completed within {waited}")
    return None if completions[0].status == "IBV_WC_SUCCESS" else f"completed with {completions[0]}"
