"""GPU phases, warm-up times and input sizes laid over workflows that have none, by a stated and seeded rule. SYNTHETIC.

What a category of tasks is, is drawn once, from the seed and the names of its application and category:

    on GPUs      the category with most work of each application, and every other one with probability 0.3
    phases       CPU 20 to 50 %, GPU, CPU 10 to 30 % of the task's time; of a quarter of them the whole task is on a GPU
    holds        1 GPU and 1 CPU in the GPU phase; 1, 2 or 4 CPUs in CPU phases
    warm-up      log-normal, median 15 s, sigma 0.6, cut to 2 and 60 s; 1 CPU meanwhile, then 1 to 8 GiB

Times are the workflow's own, stretched so that its GPU tasks take 60 s on average. Each submission has an input size
(log-normal, median 1, sigma 0.4) by which all of its times are multiplied, and each task its own factor (sigma 0.2).
Submissions are a Poisson process. `load`: GPU-seconds of GPU phases alone that arrive for each GPU-second there is.
"""

from __future__ import annotations

import importlib
import os
import random
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy

from egs_core.errors import InputError
from egs_core.graph.columns import CPU, GIB, GPU, Graph, Shape, TaskOptions
from egs_core.graph.load import LoadedWorkload, load_workload
from egs_core.runlog import records as r

MOST_TASKS = 400
MEAN_GPU_TASK_S = 60.0
GPU_CHANCE, WHOLE_CHANCE = 0.3, 0.25
SIZE_SIGMA, TASK_SIGMA = 0.4, 0.2
RECIPES = ("BlastRecipe", "CyclesRecipe", "EpigenomicsRecipe", "GenomeRecipe", "MontageRecipe", "SrasearchRecipe")
_SERIAL = re.compile(r"[\s_.\-]*(\(.*|\d+)$")


class Category(msgspec.Struct, frozen=True):
    """What tasks of one name are. before and after: shares of a task's time in CPU phases around the GPU phase."""

    is_gpu: bool
    before: float
    after: float
    cpus: int
    warmup_s: float
    warm_memory_bytes: int


class Template(msgspec.Struct, frozen=True):
    """A workflow with stretched times and the categories of its tasks."""

    name: str
    graph: Graph
    seconds: list[float]
    names: list[str]
    categories: dict[str, Category]


def load_graphs() -> list[tuple[str, Graph]]:
    """(application, graph) of workflows of at most `MOST_TASKS`: those in $EGS_DATA, else wfcommons' generators'."""
    folder = os.environ.get("EGS_DATA")
    if not folder:
        return _generated()
    paths = sorted((Path(folder) / "workflows").glob("*.json*"))
    loaded = [(path.name.partition("-")[0], load_workload(path).graph) for path in paths]
    found = [(name, graph) for name, graph in loaded if graph.n_tasks <= MOST_TASKS and _is_timed(graph)]
    if not found:
        raise InputError("EGS_DATA", f"no workflow with times and at most {MOST_TASKS} tasks under {folder}/workflows")
    return found


def _is_timed(graph: Graph) -> bool:
    return None not in graph.phase_duration_s and sum(s or 0.0 for s in graph.phase_duration_s) > 0


def _generated() -> list[tuple[str, Graph]]:
    try:
        generator = importlib.import_module("wfcommons").WorkflowGenerator
        recipes = importlib.import_module("wfcommons.wfchef.recipes")
    except ImportError:
        hint = "set EGS_DATA to a folder with workflows/*.json (WfFormat), or pip install wfcommons"
        raise InputError("EGS_DATA", "is not set, and there is no generator of workflows", hint) from None
    random.seed(1)
    numpy.random.seed(1)  # the generators draw from the global state
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            path = Path(folder) / f"{recipe}.json"
            generator(getattr(recipes, recipe).from_num_tasks(150)).build_workflow().write_json(path)
            found.append((recipe.removesuffix("Recipe").lower(), load_workload(path).graph))
    return found


def make_templates(graphs: Iterable[tuple[str, Graph]], seed: int) -> list[Template]:
    """The rule applied to every workflow; applications share their categories."""
    graphs = list(graphs)
    work: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for app, graph in graphs:
        for task in range(graph.n_tasks):
            work[app][category_of(graph.names[task])] += graph.work_s(task)
    categories = {app: _draw_categories(app, works, seed) for app, works in work.items()}
    return [_template(app, graph, categories[app]) for app, graph in graphs]


def category_of(name: str) -> str:
    """A task's name without its serial numbers and samples."""
    while (shorter := _SERIAL.sub("", name)) and shorter != name:
        name = shorter
    return name


def _draw_categories(app: str, works: dict[str, float], seed: int) -> dict[str, Category]:
    largest = max(sorted(works), key=works.__getitem__)
    return {name: _draw(random.Random(f"{seed}/{app}/{name}"), name == largest) for name in works}


def _draw(rng: random.Random, is_largest: bool) -> Category:
    is_gpu = (rng.random() < GPU_CHANCE) or is_largest
    is_whole = rng.random() < WHOLE_CHANCE
    before, after = rng.uniform(0.2, 0.5), rng.uniform(0.1, 0.3)
    warmup_s = min(60.0, max(2.0, rng.lognormvariate(0.0, 0.6) * 15.0))
    cpus, memory = rng.choice((1, 2, 4)), round(rng.uniform(1, 8) * GIB)
    return Category(is_gpu, 0.0 if is_whole else before, 0.0 if is_whole else after, cpus, warmup_s, memory)


def _template(app: str, graph: Graph, categories: dict[str, Category]) -> Template:
    names = [category_of(name) for name in graph.names]
    seconds = [graph.work_s(task) for task in range(graph.n_tasks)]
    on_gpu = [s for s, name in zip(seconds, names, strict=True) if categories[name].is_gpu]
    factor = MEAN_GPU_TASK_S / (statistics.fmean(on_gpu or seconds) or 1.0)
    return Template(app, graph, [s * factor for s in seconds], names, categories)


def submit(template: Template, workload_id: str, arrival_s: float, rng: random.Random) -> LoadedWorkload:
    """One submission of a workflow: its size, its tasks' factors, its phases."""
    size = rng.lognormvariate(0.0, SIZE_SIGMA)
    graph = Graph()
    for task, parents in enumerate(template.graph.parents):
        name = template.names[task]
        category = template.categories[name]
        seconds = max(0.1, template.seconds[task] * size * rng.lognormvariate(0.0, TASK_SIGMA))
        options = _options(template.name, name, category) if category.is_gpu else None
        graph.add_task(f"{task}", parents, _phases(category, seconds), f"{template.name}/{name}", options)
    return LoadedWorkload(workload_id, template.name, "", "", arrival_s, graph)


def _options(app: str, name: str, category: Category) -> TaskOptions:
    memory = category.warm_memory_bytes
    return TaskOptions(warm_key=f"{app}/{name}", warmup_s=category.warmup_s, warm_memory_bytes=memory)


def _phases(category: Category, seconds: float) -> tuple[tuple[int, Shape, float], ...]:
    cpu = Shape(category.cpus * 1000)
    if not category.is_gpu:
        return ((CPU, cpu, seconds),)
    gpu = (GPU, Shape(1000, 1000), seconds * (1 - category.before - category.after))
    if not category.before:
        return (gpu,)
    return (CPU, cpu, seconds * category.before), gpu, (CPU, cpu, seconds * category.after)


def gpu_seconds(workload: LoadedWorkload) -> float:
    """GPU-seconds of its GPU phases."""
    graph = workload.graph
    return sum(s or 0.0 for s, kind in zip(graph.phase_duration_s, graph.phase_kind, strict=True) if kind == GPU)


def used_in_merged(stream: Iterable[LoadedWorkload], records: Sequence[r.Record]) -> Iterator[r.Used]:
    """When tasks that hold a GPU from their start to their end were in their GPU phase; the records do not say.

    start ── cold ──┬── CPU ──┬── GPU phase ──┬── CPU ── end
                    │         └──── used ─────┘
    """
    parts = {(w.id, w.graph.ids[task]): _gpu_part(w.graph, task) for w in stream for task in range(w.graph.n_tasks)}
    cold = {(c.workload, c.task): c.end_t - c.t for c in records if isinstance(c, r.ColdStart)}
    for start in records:
        if isinstance(start, r.Started) and start.gpus > 0:
            before, seconds = parts[start.workload, start.task]
            begin = start.t + cold.get((start.workload, start.task), 0.0) + before
            yield r.Used(begin, begin + seconds, start.workload, start.task)


def _gpu_part(graph: Graph, task: int) -> tuple[float, float]:
    """Seconds before the GPU phase, and of it."""
    before = 0.0
    for p in graph.phases_of(task):
        seconds = graph.phase_duration_s[p] or 0.0
        if graph.phase_kind[p] == GPU:
            return before, seconds
        before += seconds
    return before, 0.0


def make_stream(templates: Sequence[Template], count: int, gpus: int, load: float, seed: int) -> list[LoadedWorkload]:
    """So many submissions of workflows drawn at random, with the gaps of a Poisson process at this load."""
    rng = random.Random(f"stream/{seed}")
    drawn = [submit(rng.choice(templates), f"s{seed}w{number}", 0.0, rng) for number in range(count)]
    gap_s = statistics.fmean(gpu_seconds(workload) for workload in drawn) / (gpus * load)
    now, out = 0.0, []
    for workload in drawn:
        now += rng.expovariate(1.0 / gap_s)
        out.append(msgspec.structs.replace(workload, arrival_s=now))
    return out


class Beliefs:
    """What is believed of a phase before it runs: median and 95 % quantile of its category's phases in an earlier
    stream with inputs of other sizes. It does not know the size of the input."""

    def __init__(self, earlier: Iterable[LoadedWorkload]) -> None:
        found: dict[tuple[str, int, bool], list[float]] = defaultdict(list)
        for workload in earlier:
            graph = workload.graph
            for task, name in enumerate(graph.names):
                phases = graph.phases_of(task)
                for i, p in enumerate(phases):
                    found[name, i, True].append(graph.phase_duration_s[p] or 0.0)
                found[name, 0, False].append(graph.work_s(task))
        self._known = {key: _quantiles(values) for key, values in found.items()}
        self._keys: dict[tuple[str, bool], list[tuple[str, int, bool]]] = {}

    def __call__(self, workload: LoadedWorkload, phase: int) -> tuple[float, float]:
        """An estimator for `simulate`; the workload may have its phases merged."""
        graph = workload.graph
        is_split = graph.n_phases > graph.n_tasks
        keys = self._keys.get((workload.id, is_split))
        if keys is None:
            places = [(n, i) for t, n in enumerate(graph.names) for i in range(len(graph.phases_of(t)))]
            keys = self._keys[workload.id, is_split] = [(name, i, is_split) for name, i in places]
        return self._known.get(keys[phase], (MEAN_GPU_TASK_S, 3 * MEAN_GPU_TASK_S))


def _quantiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
