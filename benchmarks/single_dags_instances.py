"""The instances of `single_dags`: files of a data folder, or graphs from wfcommons' generators."""

from __future__ import annotations

import logging
import random
import tempfile
from importlib import import_module
from pathlib import Path

import msgspec
import numpy as np

from egs_core.errors import InputError
from egs_core.graph.load import LoadedWorkload, load_workload

FOLDERS = {"workflows": "*.json", "workflows-generated": "*.json.gz"}
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
