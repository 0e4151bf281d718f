"""The instances of `single_dags`: files of a data folder, or graphs from wfcommons' generators."""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import msgspec
import numpy as np

from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload, load_workload

FOLDERS = {"workflows": "*.json", "workflows-generated": "*.json.gz"}
NAMED = (  # the public instances that the suite's stated figures are of
    "1000genome-chameleon-10ch-250k-001",
    "1000genome-chameleon-2ch-250k-001",
    "airrflow-dirt02-001",
    "blast-chameleon-medium-001",
    "blast-chameleon-small-001",
    "blast-chameleon-small-002",
    "blast-chameleon-small-003",
    "epigenomics-chameleon-hep-2seq-100k-001",
    "epigenomics-chameleon-ilmn-3seq-50k-001",
    "helloworld-forkjoin-10-chameleon",
    "hic-dirt02-001",
    "mag-dirt02-001",
    "montage-chameleon-2mass-015d-001",
    "montage-chameleon-2mass-04d-001",
    "montage-chameleon-dss-10d-001",
    "rnaseq-dirt02-001",
    "seismology-chameleon-100p-001",
    "seismology-chameleon-500p-001",
)
RECIPES = ("Blast", "Bwa", "Cycles", "Epigenomics", "Genome", "Montage", "Seismology", "Soykb", "Srasearch")
SIZES = (120, 400, 1200)
SEED = 1


class Instance(msgspec.Struct):
    """name: the file's, without its endings, or recipe and size."""

    name: str
    workload: LoadedWorkload


def load_instances(data: str | None, largest: int, generated: bool = False) -> list[Instance]:
    """Instances of at most `largest` tasks: the folder's, and those of the generators when asked for or without a
    folder. InputError when there are none."""
    instances = from_folder(Path(data)) if data else []
    if generated or not data:
        instances += from_generators()
    chosen = [i for i in instances if 0 < i.workload.graph.n_tasks <= largest]
    if not chosen:
        raise InputError("--data", f"no instance of at most {largest} tasks", "a folder with workflows/*.json")
    return chosen


def differs_from_named(instances: Sequence[Instance]) -> list[str]:
    """Instances that the named list lacks ("+ name"), then those that are lacking of it ("- name")."""
    names = {instance.name for instance in instances}
    return [f"+ {name}" for name in sorted(names - set(NAMED))] + [f"- {name}" for name in NAMED if name not in names]


def from_folder(folder: Path) -> list[Instance]:
    """All of the folder's workflows whose durations are known."""
    paths = [path for name, pattern in FOLDERS.items() for path in sorted((folder / name).glob(pattern))]
    loaded = [load_workload(path) for path in paths]
    return [Instance(w.id, w) for w in loaded if None not in w.graph.phase_duration_s]


def from_generators() -> list[Instance]:
    """Seeded graphs of each recipe in each size. InputError without wfcommons."""
    try:
        wfcommons = import_module("wfcommons")
    except ImportError:
        hint = "set EGS_DATA to a folder with workflows/*.json, or pip install 'egs-core[bench]'"
        raise InputError("--data", "no data and no generators", hint) from None
    logging.getLogger("wfcommons").setLevel(logging.WARNING)
    random.seed(SEED)
    np.random.seed(SEED)
    instances = []
    with tempfile.TemporaryDirectory(prefix="egs-w1-") as folder:
        for recipe in RECIPES:
            for size in SIZES:
                path = Path(folder) / f"{recipe.lower()}-wfgen-{size}.json"
                _generate(wfcommons, recipe, size, path)
                loaded = load_workload(path)
                instances.append(Instance(loaded.id, loaded))
    return instances


def _generate(wfcommons: object, recipe: str, size: int, path: Path) -> None:
    recipe_type = getattr(wfcommons, f"{recipe}Recipe")
    generator_type = wfcommons.WorkflowGenerator  # type: ignore[attr-defined]  # wfcommons names no public API
    generator_type(recipe_type.from_num_tasks(size)).build_workflow().write_json(path)
