"""The site: what orders the work of one or more holders, in this process or elsewhere (decision 45).

protocol    `Site` and `Holder`: what each may ask and tell; all of it plain values
messages    what is told and answered beside the engine's own events and decisions
shared      what an engine tells each of its holders: one, or many; no clock, no thread
embedded    the site in this process, on an engine of its own
held        which GPUs tasks hold, from when to when; whereabouts: how far they are
pooled      one engine a pool, for drivers that share it, without clock or network; sharing: these, and long polls
spanning    quotas and shares over several of these engines, and runs': who has it elsewhere, and whose turn it is
remote      the holder's end of such a site; wire: what is sent; over_http: the way to a server's
trusting    such pools where nobody has to say who it is; refusal: what a shared site refuses
returning   that, and an embedded site while the server is away; books: what is open; numbers: the holder's own
offers      what a holder's own nodes offer
holder_thread  the thread on which a holder is called, the same for all kinds of site
session     what the sessions of all adapters share: a site, a run log that is learned from (`learning`), an end
connect     the site of a holder: which kind it gets is not the holder's concern; connect_server: at a server or none
"""

from egs_core.engine.state.growth import PRIOR_S
from egs_core.runlog.added import added_tasks
from egs_core.site.connecting import connect, connect_server
from egs_core.site.learning import Learning
from egs_core.site.messages import (
    AnyTold,
    Asked,
    Dropped,
    Ended,
    Grant,
    Granted,
    Grown,
    Joining,
    Kept,
    Note,
    Order,
    Placed,
    PreloadBegun,
    PreloadOver,
    Ranked,
    Settled,
    Started,
    Stop,
    TaskStatus,
    Where,
    WorkloadStatus,
    where_of,
)
from egs_core.site.offers import Node, Offers, could_start_together, fits
from egs_core.site.protocol import Holder, Site
from egs_core.site.session import HolderSession

__all__ = [
    "PRIOR_S",
    "AnyTold",
    "Asked",
    "Dropped",
    "Ended",
    "Grant",
    "Granted",
    "Grown",
    "Holder",
    "HolderSession",
    "Joining",
    "Kept",
    "Learning",
    "Node",
    "Note",
    "Offers",
    "Order",
    "Placed",
    "PreloadBegun",
    "PreloadOver",
    "Ranked",
    "Settled",
    "Site",
    "Started",
    "Stop",
    "TaskStatus",
    "Where",
    "WorkloadStatus",
    "added_tasks",
    "connect",
    "connect_server",
    "could_start_together",
    "fits",
    "where_of",
]
