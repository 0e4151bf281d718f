"""Ten scripts of the Ray project in which tasks and actors compete for GPUs, by commit and hash; not their text.

Chosen before anything was timed, from all files of ray-project/ray that start a local Ray with `num_gpus` themselves:
its tests, each function of which is a program that starts and ends its own Ray, and the code of its documentation.
Taken were, in the order of the list, the first ten that

- ask at some moment for more GPUs than there are; then those that ask for all there are;
- end with exit code 0 natively, twice, on Ray 2.60 and two cores, within 60 s;
- need no network, data set, GPU library or second node.

`test_advanced_6.py:test_specific_gpus` would be fifth: its 200 processes take longer. `test_map_operator.py` would be
seventh: it calls what Ray 2.60 has otherwise, and ends with 1 natively. Nothing else was left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from egs_core.errors import InputError

REPOSITORY = "https://github.com/ray-project/ray"
COMMIT = "8dcdff8f38e49cd92c48d228dd513299e57ae165"
TESTS, DATA = "python/ray/tests", "python/ray/data/tests"
FILES = {
    f"{TESTS}/test_actor_resources.py": "3a8c0ce391598e52ca4eee680ac2b74cd0d57a1a167cd2ff11d55a672b9bbc84",
    f"{TESTS}/test_advanced_2.py": "166fb5294f3e80cf14230f9c27216a47be45919d777fef771ad12d99c60978e4",
    f"{TESTS}/test_basic.py": "61b21e2c07432b697f6ec0a8f34f57aa7ad34d6013ae63f36ce26502b8b12c2d",
    f"{TESTS}/test_basic_3.py": "950f052f6272ea04498f6e5227022ce937c4d76738517969060ce93af62c3aff",
    f"{TESTS}/conftest.py": "fff18c3ffb7a074c86f82f35719d9b33422bd8881ee43714a6eb6b7140a3fcbd",
    f"{DATA}/test_groupby_e2e.py": "00352a66d465d1dd8b250adbd43819d313b138f99fda64f0aabde515f9921dee",
    f"{DATA}/conftest.py": "1ce36c41b156d3a1ee63495e0a953ce9d42ad7b2a68d9dd80fd221097a5280a3",
    f"{DATA}/mock_server.py": "e5147a93a3bf47e9952a6e8a1925fe95ce5de617342df94b28fe077356e6db1e",
    f"{DATA}/util.py": "594205e7bca0298c6636fa409839eb3590044fdcebf984af386554e2db41844a",
    "doc/source/ray-core/doc_code/placement_group_example.py": (
        "4186af331ace0ac724e3eda6add473ce3bce357795683dc48fcb4b1709bce6e2"
    ),
}
"""Path in the repository -> SHA-256 of its text at COMMIT."""
HINT = "`python -m benchmarks.upstream --how` prints the commands that bring the scripts"


class Script(msgspec.Struct, frozen=True):
    """path: in the repository; function: what of the file is run, "" for the file itself. arguments are the function's;
    a fixture that only ends Ray is None. packages: of Ray's, whose tests the file imports. cpus, gpus: of the Ray that
    the script itself starts. limit_s is not part of it: see `benchmarks.upstream`."""

    name: str
    path: str
    function: str
    cpus: int
    gpus: int
    what: str
    arguments: tuple[bool | None, ...] = (None,)
    packages: tuple[str, ...] = ()
    drivers: int = 1


SCRIPTS = (
    Script(
        "actor-deletion",
        f"{TESTS}/test_actor_resources.py",
        "test_actor_deletion_with_gpus",
        1,
        1,
        "five actors, each asked for while the last has the GPU",
    ),
    Script(
        "blocking-actors",
        f"{TESTS}/test_actor_resources.py",
        "test_blocking_actor_task",
        1,
        1,
        "actors that wait for GPU tasks, one of which can never run",
    ),
    Script(
        "more-actors",
        f"{TESTS}/test_actor_resources.py",
        "test_creating_more_actors_than_resources",
        10,
        2,
        "three actors on two GPUs; then three that share a resource",
    ),
    Script(
        "gpu-ids",
        f"{TESTS}/test_advanced_2.py",
        "test_gpu_ids",
        3,
        3,
        "ten tasks with one GPU and ten with two on three GPUs",
    ),
    Script(
        "max-calls",
        f"{TESTS}/test_basic.py",
        "test_max_calls_releases_resources",
        2,
        1,
        "ten tasks one after the other, each after the last one's process",
    ),
    Script(
        "random-parts",
        f"{TESTS}/test_basic_3.py",
        "test_many_fractional_resources",
        2,
        2,
        "twenty tasks with random parts of a GPU, half of which wait for others",
    ),
    Script(
        "tasks-and-actors",
        f"{TESTS}/test_actor_resources.py",
        "test_actors_and_tasks_with_gpus_version_two",
        5,
        4,
        "two tasks that never end and two actors on four GPUs",
    ),
    Script(
        "fractional-actors",
        f"{TESTS}/test_advanced_2.py",
        "test_fractional_resources",
        6,
        3,
        "six actors with half a GPU each on three GPUs",
    ),
    Script(
        "placement-groups",
        "doc/source/ray-core/doc_code/placement_group_example.py",
        "",
        2,
        2,
        "groups that take GPUs, one of which can never be made",
    ),
    Script(
        "ray-data",
        f"{DATA}/test_groupby_e2e.py",
        "test_map_groups_with_gpus",
        2,
        1,
        "Ray Data: groups, each a task with the one GPU",
        (None, None, None, None),
        ("ray", "ray.data"),
    ),
)


def check_files(folder: Path, scripts: Iterable[Script]) -> None:
    """Raise InputError where a script is missing in folder, a checkout, or is not the text that the list names."""
    wanted = {script.path for script in scripts}
    if any(script.packages for script in scripts):
        wanted |= {f"{TESTS}/conftest.py", *(f"{DATA}/{name}.py" for name in ("conftest", "mock_server", "util"))}
    for path in sorted(wanted):
        try:
            text = (folder / path).read_bytes()
        except OSError:
            raise InputError(str(folder / path), "cannot be read", HINT) from None
        if hashlib.sha256(text).hexdigest() != FILES[path]:
            raise InputError(str(folder / path), f"is not the text of commit {COMMIT[:12]}", HINT)


def how_to_get() -> str:
    """Shell commands that bring the scripts, and only them, into the folder `upstream`."""
    return (
        f"git init -q upstream && cd upstream && git remote add origin {REPOSITORY} \\\n"
        f"  && git fetch -q --depth 1 --filter=blob:none origin {COMMIT} \\\n"
        "  && git checkout -q FETCH_HEAD -- " + " ".join(sorted(FILES))
    )
