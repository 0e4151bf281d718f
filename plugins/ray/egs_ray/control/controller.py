"""The controller: one detached actor a cluster, `egs-control`, through which other processes reach running tasks.

    driver  ── report (what runs, with borrowed references) ─►  controller  ◄── command (abort, pause, …) ── egs, Python
            ◄── next (a pending call: what is asked of it) ────             ──► the driver's answer, or its own

A driver that answers carries a command out itself, so that its engine, run log and reasons are right. When one hangs,
an abort ends its processes by their ids where they run, and leaves their cancellation with the driver for when it goes
on (Ray asks a reference's owner to cancel it), so that nothing is tried again. Its own state is nothing but what
drivers have told: when its process dies, Ray starts it again and the drivers tell it again. It ends itself when there
has been no driver for a while; one that reports just then finds it dead, makes another one and tells that.
"""

from __future__ import annotations

from typing import Any

import ray

NAME, NAMESPACE = "egs-control", "egs"
PATIENCE_S = 0.4
"""How long a driver may take to answer an abort before it counts as hanging."""
PATIENT_S = 5.0
"""The same for what can wait."""
IDLE_S = 60.0
"""It ends itself after so long without a driver."""


def _controller_class() -> type:
    """The actor's class. It is made here, in a function, so that Ray sends it by value: a node may lack EGS."""
    import asyncio
    import contextlib
    import os
    import signal
    import time

    poll_s, look_s = 5.0, 0.5
    cancel_s = 0.05  # a driver that is only slow hears of the cancellation before it sees its tasks' processes die

    def end_processes(pids: list[int]) -> None:
        """Kill those that are workers of Ray; a number may have passed to another process."""
        for pid in pids:
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    is_worker = file.read(5) == b"ray::"
                if is_worker and pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue

    class EgsHand:
        """Ends processes on one node."""

        def end(self, pids: list[int]) -> None:
            end_processes(pids)

    class Driver:
        """What one driver has told, and what is asked of it."""

        def __init__(self, about: dict[str, Any], life: list[Any]) -> None:
            self.about, self.life = about, life
            self.workloads: dict[str, dict[str, Any]] = {}
            self.tasks: dict[str, tuple[dict[str, Any], list[Any]]] = {}
            self.asked: list[dict[str, Any]] = []
            self.news = asyncio.Event()

        def running(self, request: dict[str, Any]) -> list[tuple[dict[str, Any], list[Any]]]:
            """Its running tasks that a request is about; a task by its id, or all of a name."""
            wanted = {key: request[key] for key in ("workload", "stage") if request[key]}
            of_it = [entry for entry in self.tasks.values() if wanted.items() <= entry[0].items()]
            task = request["task"]
            return [entry for entry in of_it if not task or task in (entry[0]["task"], entry[0]["name"])]

    class EgsControl:
        def __init__(self, idle_s: float) -> None:
            # It borrows references to users' tasks and never asks for their values: to Ray an error that nobody has
            # seen. Whose errors they are has seen them, or is told by Ray there.
            os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"
            self.idle_s = idle_s
            self.heard_s = time.monotonic()
            self.drivers: dict[str, Driver] = {}
            self.lives: dict[str, asyncio.Event] = {}
            self.answers: dict[int, asyncio.Future[Any]] = {}
            self.made = int(time.time() * 1000)  # numbers of commands; above those of a controller before this one
            self.node = ray.get_runtime_context().get_node_id()
            self.watch = asyncio.ensure_future(self._look_after())  # Ray makes such an actor on its loop

        async def ready(self) -> str:
            """Answers when the actor is there, with its node."""
            return str(self.node)

        # --- for drivers ---

        async def live(self, key: str) -> None:
            """A driver's sign of life: answers when the driver has left. It owns the reference to the answer."""
            ended = self.lives[key] = asyncio.Event()
            await ended.wait()

        async def report(self, key: str, changes: dict[str, Any], new: dict[str, Any] | None) -> bool:
            """What has changed in a driver; False: it is not known here and has to tell everything.

            new: what a driver tells with everything: `about` itself, and the reference to its sign of life in a list.
            """
            self.heard_s = time.monotonic()
            if new is not None:
                self.drivers[key] = Driver(new["about"], new["life"])
            driver = self.drivers.get(key)
            if driver is None:
                return False
            for kind, known in (("workloads", driver.workloads), ("tasks", driver.tasks)):
                for name, told in changes[kind].items():
                    if told is None:
                        known.pop(name, None)
                    else:
                        known[name] = told
            return True

        async def leave(self, key: str) -> None:
            """A driver says good-bye."""
            self.heard_s = time.monotonic()
            self.drivers.pop(key, None)
            if (ended := self.lives.pop(key, None)) is not None:
                ended.set()

        async def next(self, key: str, seen: int) -> list[dict[str, Any]] | None:
            """What is asked of a driver after `seen`, as soon as there is something; None: it is not known here."""
            until = time.monotonic() + poll_s
            while True:
                driver = self.drivers.get(key)
                if driver is None:
                    return None
                driver.asked = [request for request in driver.asked if request["number"] > seen]
                left_s = until - time.monotonic()
                if driver.asked or left_s <= 0:
                    return list(driver.asked)
                driver.news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(driver.news.wait(), left_s)

        async def answer(self, number: int, answer: dict[str, Any]) -> None:
            """What a driver did."""
            waiting = self.answers.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

        # --- for operators ---

        async def table(self) -> list[dict[str, Any]]:
            """All that is known."""
            return [
                {
                    "driver": key,
                    **driver.about,
                    "workloads": list(driver.workloads.values()),
                    "tasks": [row for row, _ in driver.tasks.values()],
                }
                for key, driver in self.drivers.items()
            ]

        async def command(self, key: str, request: dict[str, Any], patience_s: float) -> dict[str, Any]:
            """Let a driver carry a request out; answers {"hangs": …} when it does not answer, and an abort has then
            ended what runs of it. Where a process is not known, its task is among `unknown`, for `end`."""
            driver = self.drivers.get(key)
            if driver is None:
                return {"problem": "its driver is gone"}
            self.made += 1
            number, rows = self.made, driver.running(request)
            waiting = self.answers[number] = asyncio.get_running_loop().create_future()
            driver.asked.append({"number": number, **request})
            driver.news.set()
            try:
                return dict(await asyncio.wait_for(waiting, patience_s))
            except TimeoutError:
                pass
            finally:
                self.answers.pop(number)
            if request["verb"] == "abort":
                for ref in [ref for _, refs in rows for ref in refs]:
                    ray.cancel(ref, force=True, recursive=True)
                await asyncio.sleep(cancel_s)
                await self.end([pid for row, _ in rows for pid in row["pids"]])
            unknown = [row["framework_id"] for row, _ in rows if not row["pids"]]
            return {"hangs": True, "tasks": [row["task"] for row, _ in rows], "unknown": unknown}

        async def end(self, pids: list[tuple[str, int]]) -> None:
            """Kill worker processes, each given with its node."""
            by_node: dict[str, list[int]] = {}
            for node, pid in pids:
                by_node.setdefault(node, []).append(pid)
            end_processes(by_node.pop(self.node, []))
            for node, numbers in by_node.items():
                where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
                hand = ray.remote(EgsHand).options(num_cpus=0, scheduling_strategy=where).remote()
                await asyncio.wait([asyncio.ensure_future(hand.end.remote(numbers))], timeout=poll_s)

        # --- now and then ---

        async def _look_after(self) -> None:
            """Forget drivers that are dead: what they own has a value then, to Ray an error. End without any."""
            while self.drivers or time.monotonic() - self.heard_s < self.idle_s:
                await asyncio.sleep(min(look_s, self.idle_s))
                for key, driver in list(self.drivers.items()):
                    if await asyncio.to_thread(is_ready, driver.life):
                        await self.leave(key)
            ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def is_ready(refs: list[Any]) -> bool:
        return len(ray.wait(refs, timeout=0, fetch_local=False)[0]) > 0

    return EgsControl


def get_or_make(idle_s: float = IDLE_S) -> Any:
    """The cluster's controller; made when there is none. Does not wait for it."""
    options: dict[str, Any] = {"name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    control = ray.remote(_controller_class()).options(
        num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=1000, enable_task_events=False, **options
    )
    return control.remote(idle_s)


def find() -> Any | None:
    """The cluster's controller, if there is one."""
    try:
        return ray.get_actor(NAME, NAMESPACE)
    except ValueError:
        return None
