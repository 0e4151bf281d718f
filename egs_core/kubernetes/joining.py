"""The site server that `EGS_URL` names, as the controller has it: joined, lost, and joined again.

    no server yet ──► joined ──► lost ──► gates stay closed for AWAY_S, but for those past their release-by time
                        ▲                    │ then the controller decides alone, by an engine of its own
                        └────────────────────┘ asked for again all the while, in a thread

A session that joins is told all that is listed, so nothing of an earlier one is needed. Each has a pool of its own at
the server: it has the whole cluster's pods, and nobody else's are in it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from egs_core.kubernetes.pods import Node, Pod
from egs_core.kubernetes.session import ClusterSession
from egs_core.site import Asked, Joining, Site, connect_server
from egs_core.site.protocol import Holder

AWAY_S = 60.0
"""So long the controller waits for a server that is away, before it decides alone."""
STEADY_S = 20.0
"""A session that lasts for less long does not count as one: an engine that fails again and again is no engine."""
AGAIN_S, MOST_AGAIN_S = 2.0, 30.0
FRAMEWORK = "kubernetes"
NAMED = 200


class Door:
    """See the module. url: of the server; name: what its people call the cluster; queue: of pods whose namespace has
    none of its name; notebooks: of notebooks, "": as of other pods. woken: told when a session has joined,
    or one has news. Its methods are for one thread."""

    def __init__(
        self,
        url: str,
        name: str,
        queue: str,
        may_restart: Callable[[Pod], bool],
        woken: Callable[[], None],
        say: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
        notebooks: str = "",
    ) -> None:
        self.url = url
        self._name, self._queue, self._may_restart = name, queue, may_restart
        self._notebooks = notebooks
        self._woken, self._say, self._clock = woken, say, clock
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._found: ClusterSession | None = None
        self._problem = ""
        self._away_since: float | None = None
        self._joined_at = 0.0
        self._next = 0.0
        self._wait_s = AGAIN_S

    @property
    def is_given_up(self) -> bool:
        """The server has been away for so long that the controller decides alone."""
        return self._away_since is not None and self._clock() - self._away_since > AWAY_S

    def session(self) -> ClusterSession | None:
        """One that has joined since the last call. Where there is none, the server is asked, beside."""
        now = self._clock()
        with self._lock:
            found, self._found = self._found, None
            problem = self._problem
        if found is not None:
            self._joined_at, self._wait_s = now, AGAIN_S
            self._say("server", f"joined {self.url}: its queues order the pods")
            return found
        self._away_since = now if self._away_since is None else self._away_since
        if problem:
            what = (
                "decides alone until it is there" if self.is_given_up else f"waits for it, for {AWAY_S:.0f} s at most"
            )
            self._say("server", f"{problem}: the controller {what}")
        if now >= self._next and (self._thread is None or not self._thread.is_alive()):
            self._next, self._wait_s = now + self._wait_s, min(MOST_AGAIN_S, 2 * self._wait_s)
            self._thread = threading.Thread(target=self._try, name="egs-join", daemon=True)
            self._thread.start()
        return None

    def kept(self, session: ClusterSession, pods: Mapping[str, Pod], nodes: Sequence[Node]) -> ClusterSession:
        """The session, or one in its place where these pods have outgrown it: that has been told of them before the
        other goes, so that what they hold is free at no moment. Raises EgsError where it cannot join."""
        keys = session.outgrown(pods, nodes)
        if keys is None:
            return session
        fresh = self._made()
        try:
            fresh.renew_with(keys)
            fresh.tell(pods, nodes)
            fresh.order()  # an answer: all that was told is there by now, whichever connection is quicker
        except BaseException:
            close_beside(fresh)
            raise
        close_beside(session)
        return fresh

    def works(self) -> None:
        """The session that has joined was told all, and has answered."""
        if self._clock() - self._joined_at >= STEADY_S:
            self._away_since = None

    def lost(self, session: ClusterSession, problem: str) -> None:
        """It is joined no longer."""
        with self._lock:
            self._problem = f"{self.url}: {problem}"
        self._away_since = self._clock() if self._away_since is None else self._away_since
        close_beside(session)

    def rest(self) -> None:
        """Another controller leads: nothing is asked for, and what has joined meanwhile goes."""
        with self._lock:
            found, self._found = self._found, None
        self._away_since = None
        if found is not None:
            found.close()

    # --- the thread ---

    def _try(self) -> None:
        try:
            found = self._made()
        except Exception as error:  # whatever it is, it is asked again
            with self._lock:
                self._problem = f"{self.url}: {error}".splitlines()[0]
        else:
            with self._lock:
                self._found, before, self._problem = found, self._found, ""
            if before is not None:
                before.close()
        self._woken()

    def _made(self) -> ClusterSession:
        return ClusterSession(self._connect, self._woken, self._may_restart, self._asked, self._queue_of)

    def _queue_of(self, pod: Pod) -> str:
        return self._notebooks if self._notebooks and pod.maker.is_notebook else pod.namespace

    def _connect(self, holder: Holder) -> Site:
        joining = Joining(FRAMEWORK, uuid.uuid4().hex, self._name[:NAMED], self._queue)
        return connect_server(self.url, holder, joining)

    def _asked(self, request: Asked) -> None:
        by = f"{request.actor} asks to {request.verb} all of it" if request.actor else f"asked to {request.verb}"
        self._say(
            "asked", f"{by}: is not carried out: `egs kubernetes {request.verb} RUN`, by whoever may change its pods"
        )


def close_beside(session: ClusterSession) -> None:
    """Its server may not answer: nobody waits for that."""
    threading.Thread(target=session.close, name="egs-leave", daemon=True).start()
