"""One of several controllers leads: it holds a Lease, and writes into it again and again that it lives.

Who finds a Lease that was not renewed for `LEASE_S` by its own clock takes it; clocks of machines are not compared. Who
cannot renew its own stops leading before another may begin. Who sees that EGS was taken out of the cluster
(`names.LEFT`) since its own first look leads no more: `leave` waits for that before it deletes the rest. No moments are
compared for it: a mark that was there at the first look is of an earlier time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from egs_core.kubernetes import names
from egs_core.kubernetes.cluster import LEASES, ApiError, Cluster
from egs_core.kubernetes.objects import part, text

LEASE_S, RENEW_S, GIVE_UP_S = 15.0, 3.0, 10.0


class Leader:
    """See the module. holder: who leads, as of the last look, "": nobody; left_at: when EGS was taken out of the
    cluster, "": it was not."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._namespace, self._name, self.identity = cluster, namespace, name, identity
        self._clock = clock
        self._seen: tuple[str, str] = ("", "")  # holder and its last renewal
        self._seen_at = clock()
        self._renewed_at = float("-inf")
        self._ended = threading.Event()
        self._mark: str | None = None  # as it was at the first look
        self.problem = self.holder = self.left_at = ""
        self._thread = threading.Thread(target=self._run, name="egs-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def leads(self) -> bool:
        return not self.left_at and self._clock() - self._renewed_at < GIVE_UP_S

    def stop(self) -> None:
        """Give the Lease back, so that the next one need not wait."""
        self._ended.set()
        self._thread.join(20.0)
        if self.leads or self.left_at:
            self._renewed_at = float("-inf")
            try:
                lease = self._cluster.get(LEASES, self._name, self._namespace)
                if lease["spec"].get("holderIdentity") == self.identity:
                    lease["spec"]["holderIdentity"] = ""
                    self._cluster.replace(LEASES, self._name, lease, self._namespace)
            except ApiError:
                pass  # it runs out

    def try_once(self) -> None:
        """Take the Lease where nobody has it, or renew it."""
        begun = self._clock()
        try:
            if self._take():
                self._renewed_at = begun
            self.problem = ""
        except ApiError as error:
            if error.status != 409:  # else somebody was faster
                self.problem = f"{error}{self._remedy if error.status == 404 else ''}"

    @property
    def _remedy(self) -> str:
        return f": kubectl create namespace {self._namespace}, or name another one with --lease-namespace"

    def _run(self) -> None:
        while not self._ended.is_set():
            self.try_once()
            self._ended.wait(RENEW_S)

    def _take(self) -> bool:
        try:
            lease = self._cluster.get(LEASES, self._name, self._namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            self._mark = self._mark or ""
            meta = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": self._spec({})}
            self._cluster.create(LEASES, body, self._namespace)
            return True
        spec = lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", str(spec.get("renewTime"))
        self.holder = holder
        mark = text(part(part(lease, "metadata"), "annotations"), names.LEFT)
        self._mark = mark if self._mark is None else self._mark
        if mark not in ("", self._mark):
            self.left_at = mark
            return False
        if (holder, renewed) != self._seen:
            self._seen, self._seen_at = (holder, renewed), self._clock()
        if holder not in ("", self.identity) and self._clock() - self._seen_at < LEASE_S:
            return False
        lease["spec"] = self._spec(spec)
        self._cluster.replace(LEASES, self._name, lease, self._namespace)  # a conflict where another was faster
        return True

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        changes = int(before.get("leaseTransitions") or 0)
        is_new = before.get("holderIdentity") != self.identity
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": int(LEASE_S),
            "acquireTime": now if is_new else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": changes + (1 if is_new and before else 0),
        }
