"""Clusters nominated for Workloads, by what a site server foretells; and what it is told of this cluster's queues.

worker    outlook ──► server                     a thread of its own: no step waits for the server
manager   question ──► server ──► answers ──► nominations, a few writes a step
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from egs_core.client.http import DRIVER_S, SiteClient, trusted_owners
from egs_core.client.outlooks import STALE_S, Named, Naming, Outlook, Question
from egs_core.client.places import parse_url
from egs_core.kubernetes import clusters
from egs_core.kubernetes.bookings import outlook_of
from egs_core.kubernetes.cluster import (
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    LOCAL_QUEUES,
    MULTIKUEUE_CLUSTERS,
    MULTIKUEUE_CONFIGS,
    WORKLOADS,
    ApiError,
    Cluster,
)
from egs_core.kubernetes.clusters import MANAGER, Choice, Nomination
from egs_core.kubernetes.kueue import Queues
from egs_core.kubernetes.mirror import Mirror
from egs_core.kubernetes.opening import nominate
from egs_core.kubernetes.pods import Pod

CONNECT_S = 2.0
AGAIN_S, MOST_AGAIN_S = 2.0, 16.0
"""After so long it is tried again; each time without an answer it is twice as long."""
LOOK_S, TELL_S, ASK_S = 1.0, STALE_S / 3, 5.0
WRITING_S = 0.5
"""So long a step writes nominations: gates are opened by the same thread."""
LEAST_SHARE = 10
"""It is asked again at the earliest after so many times as long as the last answer took."""
FRESH_S = 3 * ASK_S


class Elsewhere:
    """The site server, asked and told beside. woken: told of each new answer."""

    def __init__(self, url: str, woken: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url
        self._woken, self._clock = woken, clock
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._ended = threading.Event()
        self._outlook: Outlook | None = None
        self._question: Question | None = None
        self._answers: dict[str, tuple[Naming, float]] = {}
        self._asking_since: float | None = None
        self._not_before = float("-inf")
        self.problem = ""
        self._thread: threading.Thread | None = None

    def tell(self, outlook: Outlook) -> None:
        """The latest counts, if one before is still on the way."""
        with self._lock:
            self._outlook = outlook
        self._begin()

    def ask(self, question: Question) -> bool:
        """False where the last answer has only just come."""
        if self._clock() < self._not_before:
            return False
        with self._lock:
            self._question = question
            self._asking_since = self._clock() if self._asking_since is None else self._asking_since
        self._begin()
        return True

    def answers(self) -> dict[str, Naming]:
        """Those that are new enough, by name."""
        with self._lock:
            since = self._clock() - FRESH_S
            self._answers = {name: one for name, one in self._answers.items() if one[1] >= since}
            return {name: naming for name, (naming, _) in self._answers.items()}

    @property
    def is_away(self) -> bool:
        """It was asked long ago, and has answered nothing since."""
        since = self._asking_since
        return since is not None and self._clock() - since > clusters.AWAY_S

    def close(self) -> None:
        """Nobody waits for what is under way."""
        self._ended.set()
        self._due.set()

    def _begin(self) -> None:
        self._due.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="egs-clusters", daemon=True)
            self._thread.start()

    # --- the thread ---

    def _run(self) -> None:
        client: SiteClient | None = None
        again_s = AGAIN_S
        while not self._ended.is_set():
            self._due.wait()
            self._due.clear()
            with self._lock:
                outlook, asked = self._outlook, self._question
                self._outlook = self._question = None
            try:
                client = client or SiteClient(parse_url(self.url), trusted_owners(), CONNECT_S)
                self._exchange(client, outlook, asked)
                self.problem, again_s = "", AGAIN_S
            except Exception as error:  # whatever it is, it is asked again
                self.problem = f"{error}".partition("\n")[0] or type(error).__name__
                with self._lock:
                    self._outlook, self._question = self._outlook or outlook, self._question or asked
                self._ended.wait(again_s)
                again_s = min(MOST_AGAIN_S, 2 * again_s)
                self._due.set()
        if client is not None:
            client.close()

    def _exchange(self, client: SiteClient, outlook: Outlook | None, asked: Question | None) -> None:
        if outlook is not None and not self._ended.is_set():
            client.send("POST", "/v1/outlooks", msgspec.json.encode(outlook), DRIVER_S)
        if asked is not None and asked.candidates and not self._ended.is_set():
            begun = self._clock()
            body = client.send("POST", "/v1/outlooks/named", msgspec.json.encode(asked), DRIVER_S)
            found, now = msgspec.json.decode(body, type=Named), self._clock()
            with self._lock:
                self._answers.update((one.name, (one, now)) for one in found.namings)
                self._asking_since, self._not_before = None, now + LEAST_SHARE * (now - begun)
            self._woken()


class MultiKueue:
    """The controller's part, see the module. role: one of `clusters.ROLES`; name: by which others name it;
    url: of the site server, "": there is none, and all clusters are nominated. note: hears what is wrong; say: a line
    for each nomination. Its methods are for one thread."""

    def __init__(
        self,
        cluster: Cluster,
        role: str,
        name: str,
        url: str,
        woken: Callable[[], None],
        note: Callable[[str, str], None],
        say: Callable[[str], None],
        watch_s: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._name, self._note, self._say, self._clock = cluster, name, note, say, clock
        self._woken = woken
        kinds = (ADMISSION_CHECKS, MULTIKUEUE_CONFIGS, MULTIKUEUE_CLUSTERS) if role == MANAGER else ()
        self._mirrors = {
            kind: Mirror(cluster, kind, lambda raw: raw, woken, optional=True, watch_s=watch_s) for kind in kinds
        }
        self._elsewhere = Elsewhere(url, woken, clock) if url else None
        self._next = self._asked_at = self._told_at = float("-inf")
        self._asked: frozenset[str] = frozenset()
        self._turn = 0
        self._failed: set[str] = set()
        self._told: Outlook | None = None

    @property
    def mirrors(self) -> list[Mirror]:
        """What it has to see, beside what is in Kueue's queues."""
        return list(self._mirrors.values())

    def close(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.close()

    def look(self, queues: Queues, pods: Mapping[str, Pod], now: float, leads: Callable[[], bool]) -> None:
        """Tell and ask what is due, and nominate. queues: with bookings; pods: of the cluster, by uid; now: Unix
        time."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + LOOK_S
        if self._mirrors:
            self._nominate(queues, pods, now, leads)
        elif self._elsewhere is not None:
            local, cluster = queues.listed(LOCAL_QUEUES), queues.listed(CLUSTER_QUEUES)
            self._tell(self._elsewhere, outlook_of(self._name, queues.listed(WORKLOADS), local, cluster, pods, now))
        if self._elsewhere is not None:
            self._note("clusters", self._elsewhere.problem)

    def _tell(self, elsewhere: Elsewhere, outlook: Outlook) -> None:
        """What has changed at once; that time goes by, now and then."""
        still = _without_times(outlook)
        if still != self._told or self._clock() - self._told_at >= TELL_S:
            self._told, self._told_at = still, self._clock()
            elsewhere.tell(outlook)

    def _nominate(self, queues: Queues, pods: Mapping[str, Pod], now: float, leads: Callable[[], bool]) -> None:
        connected = clusters.clusters_of(*(mirror.items().values() for mirror in self._mirrors.values()))
        found = clusters.choices(queues.listed(WORKLOADS), connected, now)
        answers, is_away = dict[str, Naming](), True
        if self._elsewhere is not None:
            self._ask(self._elsewhere, found, pods, now)
            answers, is_away = self._elsewhere.answers(), self._elsewhere.is_away
        made = clusters.nominations(found, answers, now, is_away=is_away)
        self._failed &= {one.choice.name for one in made}
        made.sort(key=lambda one: one.choice.name in self._failed)  # what cannot be written holds up no other
        until = self._clock() + WRITING_S
        for one in made:
            if not leads():
                return
            if self._clock() > until:
                self._next = float("-inf")
                self._woken()
                return
            raw = self._write(one)
            if one.choice.name in self._failed:
                return
            if raw is not None:
                queues.put(raw)

    def _ask(self, elsewhere: Elsewhere, found: list[Choice], pods: Mapping[str, Pod], now: float) -> None:
        """What is new at once, the rest now and then."""
        names = frozenset(one.name for one in found if not one.workload.booking.cluster)
        if not names or (names <= self._asked and self._clock() - self._asked_at < ASK_S):
            return
        if elsewhere.ask(clusters.question(found, pods, now, self._turn)):
            self._asked_at, self._asked, self._turn = self._clock(), names, self._turn + 1

    def _write(self, one: Nomination) -> dict[str, Any] | None:
        self._failed.discard(one.choice.name)
        try:
            raw = nominate(self._cluster, one)
        except ApiError as error:
            if error.status not in (404, 409):
                self._failed.add(one.choice.name)
                self._note("nominate", f"{one.choice.name}: {error}")
            return None
        if raw is not None:
            self._say(f"workload {one.choice.name}: {', '.join(one.clusters)}: {one.why}")
        return raw


def _without_times(outlook: Outlook) -> Outlook:
    replace = msgspec.structs.replace
    return replace(
        outlook,
        queues=tuple(
            replace(queue, holding=tuple(replace(one, left_s=None) for one in queue.holding))
            for queue in outlook.queues
        ),
    )
