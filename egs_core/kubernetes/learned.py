"""What pods of earlier runs took, by namespace, pipeline and step: the newest few of each, and what follows from them.

    a pod that has succeeded ──► Took ──► the newest MOST_TOOK of its step ──► `Predictor` ──► `Likely` of its like
                                               │       ▲
                                               ▼       │  whichever way: the union of both, so nothing counts twice
                                          text that outlives the process

A step is the place in Argo's graph, the same in every run, else what the label `egs.io/task` says. Only what has
succeeded teaches: what failed, was stopped, or was deleted before it ended says nothing of how long a task takes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

import msgspec

from egs_core.kubernetes.pods import Pod
from egs_core.kubernetes.seen import has_moved
from egs_core.kubernetes.steps import in_any_run
from egs_core.predict import Predictor, signature_of
from egs_core.site import PRIOR_S

VERSION = 1
MOST_TOOK = 10
"""So many durations of a step are kept: the predictor goes by the newest five above all."""
MOST_STEPS, LONGEST_NAME = 500, 500
"""Of one pipeline so many steps, with names so long: who may make a pod may make up names without end."""
MOST_BYTES = 600_000
"""Of all texts together; a ConfigMap may have 1 MiB."""
PULLS, OLD_PULLS = "_pulls", "pulls"
"""Stands for a pipeline whose steps are images, by their full names: how long a node took to pull each. No namespace
has such a name; one may have the old one, under which that was kept, but no pipeline's key is without a dot."""
_TAG = 6


class Took(msgspec.Struct, frozen=True, array_like=True, order=True):
    """One pod. ended: Unix time; pod: a few digits by which it is known again."""

    ended: float
    seconds: float
    pod: str


class Likely(msgspec.Struct, frozen=True):
    """How long a step's next pod takes, as so many before it say."""

    seconds: float
    pods: int


class Stored(msgspec.Struct, frozen=True):
    """A pipeline as text has it, as JSON."""

    version: int
    steps: dict[str, list[Took]]


Answers = Mapping[str, tuple[tuple[Took, ...], Likely]]
"""By step, and of what each was made."""


class Pipeline:
    """The steps of one pipeline as they are known at one time. An answer is made when it is asked for. before: earlier
    ones; where one is hardly another now, it stays."""

    def __init__(self, took: Mapping[str, tuple[Took, ...]], before: Answers | None = None) -> None:
        self._took, self._before = dict(took), before or {}
        self._answers: dict[str, tuple[tuple[Took, ...], Likely]] = {}

    def likely(self, step: str) -> Likely | None:
        """None: nothing is known of it."""
        took = self._took.get(step)
        if not took:
            return None
        if step not in self._answers:
            self._answers[step] = took, self._likely(step, took)
        return self._answers[step][1]

    def answers(self) -> Answers:
        """The last of each step that was asked for."""
        return {**self._before, **self._answers}

    def _likely(self, step: str, took: tuple[Took, ...]) -> Likely:
        last, before = self._before.get(step, ((), None))
        if last is took and before is not None:
            return before
        made = _predicted(took)
        if before is None or before.pods != made.pods or has_moved(before.seconds, made.seconds):
            return made
        return before


Learnt = Mapping[str, Pipeline]
"""By `pipeline_of`. Another object where anything in it is another one."""
NOTHING: Learnt = {}


class Learned:
    """All that is known. learnt: as of the last `renew`."""

    def __init__(self) -> None:
        self._took: dict[str, dict[str, tuple[Took, ...]]] = {}
        self._texts: dict[str, str] = {}
        self._stale: set[str] = set()  # what is another than in `learnt`
        self._changed: set[str] = set()  # what is known and another than where it is kept
        self._kept: set[str] = set()  # keys of what is there
        self.learnt: Learnt = NOTHING

    @property
    def has_news(self) -> bool:
        """Whether there is something to keep."""
        return bool(self._changed or self._gone())

    def take(self, pods: Iterable[Pod]) -> None:
        """Learn from those of them that teach."""
        for pod in pods:
            step, took = step_of(pod), took_of(pod)
            if step and took is not None and self._add(pipeline_of(pod), step, (took,)):
                self._changed.add(pipeline_of(pod))

    def take_pull(self, image: str, at: float, seconds: float, uid: str) -> None:
        """A node has pulled it. at: Unix time; uid: of the pod for which."""
        if self._add(PULLS, image, (_took(at, seconds, uid),)):
            self._changed.add(PULLS)

    def read(self, texts: Mapping[str, str]) -> list[str]:
        """Learn from what is kept, by key; keys of what cannot be read, and counts as nothing."""
        unreadable: list[str] = []
        self._kept = set()
        for key, text in texts.items():
            pipeline = PULLS if key in (PULLS, OLD_PULLS) else key.replace(".", "/", 1)
            if pipeline == key != PULLS:
                continue  # of something else
            try:
                stored = msgspec.json.decode(text, type=Stored)
            except (msgspec.MsgspecError, RecursionError):
                stored = Stored(0, {})
            if stored.version != VERSION:
                unreadable.append(key)
                continue
            for step, took in stored.steps.items():
                self._add(pipeline, step, [one for one in took if _is_sound(one)])
            if pipeline in self._took:
                self._texts[pipeline] = text
                self._kept.add(key)
                self._changed.update([pipeline] if key == OLD_PULLS else [])
        return unreadable

    def renew(self) -> None:
        """What was learned counts; pipelines of which nothing was learned stay the same objects."""
        if self._stale:
            found = {key: one for key, one in self.learnt.items() if key not in self._stale}
            for key in self._stale & self._took.keys():
                before = self.learnt.get(key)
                found[key] = Pipeline(self._took[key], None if before is None else before.answers())
            self.learnt, self._stale = found, set()

    def news(self) -> dict[str, str | None]:
        """By key, the texts of what has changed since `kept`; None: of what is kept, it was forgotten, as all together
        became too long. It has to be called now and then also where nothing can be kept: for that it is forgotten."""
        for pipeline in sorted(self._changed & self._took.keys()):
            stored = Stored(VERSION, {step: list(took) for step, took in sorted(self._took[pipeline].items())})
            self._texts[pipeline] = msgspec.json.encode(stored).decode()
        self._forget()
        changed = {key_of(pipeline): self._texts[pipeline] for pipeline in sorted(self._changed)}
        return {**changed, **dict.fromkeys(sorted(self._gone()))}

    def texts(self) -> dict[str, str]:
        """By key, of all that is known as of `news`."""
        return {key_of(pipeline): text for pipeline, text in self._texts.items()}

    def kept(self) -> None:
        """The news are where a later leader finds them."""
        self._changed, self._kept = set(), {*map(key_of, self._texts)}

    def _gone(self) -> set[str]:
        return self._kept - {*map(key_of, self._texts)}

    def _add(self, pipeline: str, step: str, took: Iterable[Took]) -> bool:
        """Whether that is news."""
        steps = self._took.get(pipeline, {})
        before = steps.get(step, ())
        found = tuple(sorted({*before, *took})[-MOST_TOOK:])
        if not found or found == before or len(step) > LONGEST_NAME:
            return False
        self._took.setdefault(pipeline, steps)[step] = found
        while len(steps) > MOST_STEPS:
            del steps[min(steps, key=lambda one: (steps[one][-1], one))]
        self._stale.add(pipeline)
        return True

    def _forget(self) -> None:
        """Of the namespace that has the most, the pipeline that has taught nothing for longest: nobody makes others
        forget theirs."""
        sizes = {pipeline: len(text.encode()) for pipeline, text in self._texts.items()}
        of: dict[str, int] = {}
        for pipeline, size in sizes.items():
            namespace = pipeline.partition("/")[0]
            of[namespace] = of.get(namespace, 0) + size
        while sum(of.values()) > MOST_BYTES:
            most = max(of, key=lambda one: (of[one], one))
            mine = [one for one in sizes if one.partition("/")[0] == most]
            oldest = min(mine, key=lambda one: (max(took[-1] for took in self._took[one].values()), one))
            of[most] -= sizes.pop(oldest)
            del self._texts[oldest], self._took[oldest]
            self._stale.add(oldest)
            self._changed.discard(oldest)


def pipeline_of(pod: Pod) -> str:
    """Namespace and workload of a pod of ours."""
    return "/".join(pod.run.split("/")[:2])


def key_of(pipeline: str) -> str:
    """Under which its text is kept: no namespace has a dot in its name.

    >>> key_of("team/nightly")
    'team.nightly'
    """
    return pipeline.replace("/", ".", 1)


def step_of(pod: Pod) -> str:
    """By which other runs know its task; "": by nothing."""
    if pod.workflow and pod.argo_node:
        return in_any_run(pod.workflow, pod.argo_node)
    return pod.task if pod.has_task else ""


def took_of(pod: Pod) -> Took | None:
    """What it teaches; None: nothing. One that is being deleted may have ended for that."""
    if not pod.is_ours or pod.ran_s is None or not pod.ended or pod.is_leaving:
        return None
    return _took(pod.ended, pod.ran_s, pod.uid)


def as_learned(pod: Pod, learnt: Learnt) -> Pod:
    """With what was learned in the place of what its labels say of how long it takes; how long its run goes on after
    it is as they say."""
    known = learnt.get(pipeline_of(pod)) if pod.is_ours and not pod.is_over else None
    likely = known.likely(step_of(pod)) if known is not None else None
    if likely is None:
        return pod
    stated_s = PRIOR_S if pod.predicted_s is None else pod.predicted_s
    rank_s = None if pod.rank_s is None else max(0.0, pod.rank_s - stated_s) + likely.seconds
    return msgspec.structs.replace(pod, predicted_s=likely.seconds, rank_s=rank_s, learned_from=likely.pods)


def _took(at: float, seconds: float, uid: str) -> Took:
    return Took(at, round(seconds, 1), hashlib.sha256(uid.encode()).hexdigest()[:_TAG])


def _predicted(took: Iterable[Took]) -> Likely:
    predictor, signature = Predictor(), signature_of("", "")
    pods = sum(predictor.observe(signature, one.seconds) for one in took)
    return Likely(round(predictor.estimate(signature).p50_s, 1), pods)


def _is_sound(one: Took) -> bool:
    return math.isfinite(one.ended) and math.isfinite(one.seconds) and one.ended > 0 and one.seconds >= 0
