"""`egs simulate`, `plan` and `why`: what they print, and one line with exit code 2 for what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.engine import POLICIES
from egs_core.history.from_runlog import history_from_runlog
from egs_core.history.sql import SqlHistory
from egs_core.runlog import records as r
from egs_core.runlog.io import read_run, write_run
from egs_core.runlog.metrics import summarise

TRAIN = [
    {"kind": "cpu", "duration_s": 1.0},
    {"kind": "gpu", "gpus": 1, "duration_s": 2.0},
    {"kind": "cpu", "duration_s": 0.5},
]
TASKS = [
    {"id": "load", "phases": [{"kind": "cpu", "duration_s": 1.0}]},
    {"id": "train1", "parents": ["load"], "phases": TRAIN},
    {"id": "train2", "parents": ["load"], "phases": TRAIN},
    {"id": "evaluate", "parents": ["train1", "train2"], "phases": [{"kind": "gpu", "gpus": 1, "duration_s": 1.0}]},
]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "pipe.json", TASKS)


def write(path: Path, tasks: list[dict[str, Any]], **head: object) -> str:
    path.write_text(json.dumps({"format": "egs-workload", "version": 1, "id": path.stem, "tasks": tasks, **head}))
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    """The JSON of a command that must succeed."""
    assert run([*args, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


CLUSTER = ("--cpus", "4", "--gpus", "1")


# --- simulate ---------------------------------------------------------------------------------------------------------


def test_simulate_prints_the_figures(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """load 1 → cpu 1 → two GPU phases 2 + 2 → cpu 0.5 → evaluate 1: 7.5 s, which is the bound; no GPU is wasted."""
    found = printed(capsys, "simulate", file, *CLUSTER, "--policy", "egs", "--durations", "exact")
    assert (found["makespan_s"], found["lower_bound_s"], found["mean_jct_s"], found["p95_jct_s"]) == (7.5,) * 4
    assert (found["phases"], found["wastage_kind"], found["wastage_effective"]) == (8, "gpu", 0.0)
    assert found["phases_per_s"] > 0
    assert (found["policy"], found["durations"], found["failed"]) == ("egs", "exact", [])


def test_simulate_on_slots_counts_the_cpu_kind(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every phase takes one slot: on one slot the makespan is all work."""
    found = printed(capsys, "simulate", file, "--slots", "1")
    assert (found["makespan_s"], found["lower_bound_s"], found["wastage_kind"]) == (9.0, 9.0, "cpu")


def test_without_split_the_gpu_is_held_idle(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--no-split: longer, and the bound (of the split graph) stays."""
    found = printed(capsys, "simulate", file, *CLUSTER, "--no-split")
    assert (found["makespan_s"], found["lower_bound_s"], found["gpu_held_s"]) == (9.0, 7.5, 8.0)


def test_several_files_are_several_workloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With their arrivals: the bound and the times count from the first one."""
    one = [{"id": "a", "phases": [{"kind": "cpu", "duration_s": 4.0}]}]
    files = [write(tmp_path / "x.json", one, arrival_s=10.0), write(tmp_path / "y.json", one, arrival_s=13.0)]
    found = printed(capsys, "simulate", *files, "--slots", "2")
    assert (found["workloads"], found["makespan_s"], found["lower_bound_s"]) == (2, 7.0, 7.0)
    assert found["mean_jct_s"] == 4.0


def test_all_policies_side_by_side(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--policy all: one run each, in one JSON object or one table."""
    found = printed(capsys, "simulate", file, "--slots", "2", "--policy", "all")
    assert [r["policy"] for r in found["runs"]] == list(POLICIES)
    assert run(["simulate", file, "--slots", "2", "--policy", "all"]) == 0
    table = capsys.readouterr().out
    assert all(name[:6] in table for name in POLICIES)


def test_the_run_log_says_the_same(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--runlog: a log that the metrics read to the printed figures, labelled."""
    log = tmp_path / "run.jsonl"
    found = printed(capsys, "simulate", file, *CLUSTER, "--runlog", str(log))
    logged = read_run(log)
    metrics = summarise(logged.records)
    assert (metrics.makespan_s, metrics.wastage_effective) == (found["makespan_s"], found["wastage_effective"])
    assert (logged.header.driver, logged.header.policy) == ("sim", "egs")


def test_predicted_durations_come_from_history(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty history gives priors; one that has seen the pipeline gives its durations, so the estimates change."""
    log, url = tmp_path / "run.jsonl", f"sqlite:///{tmp_path / 'h.db'}"
    args = ("simulate", file, *CLUSTER, "--durations", "predicted", "--history")
    printed(capsys, *args, url, "--runlog", str(log))
    believed = {getattr(x, "estimate_p50_s", None) for x in read_run(log).records} - {None}
    assert believed.isdisjoint({1.0, 2.0, 0.5})
    store = SqlHistory(url)
    assert store.record(history_from_runlog(read_run(log).records)) == 8
    store.close()
    found = printed(capsys, *args, str(tmp_path / "h.db"), "--runlog", str(log))
    believed = {getattr(x, "estimate_p50_s", None) for x in read_run(log).records} - {None}
    assert believed == {1.0, 2.0, 0.5}
    assert found["makespan_s"] == 7.5


# --- plan -------------------------------------------------------------------------------------------------------------


def test_plan_is_the_ranked_order(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Order, rank, slack, critical or not, start and end on that cluster."""
    found = printed(capsys, "plan", file, *CLUSTER)
    assert (found["makespan_s"], found["lower_bound_s"], found["critical_path_s"]) == (7.5, 7.5, 5.5)
    assert [t["task"] for t in found["tasks"]] == ["load", "train1", "train2", "evaluate"]
    first, last = found["tasks"][0], found["tasks"][-1]
    assert (first["order"], first["rank_s"], first["slack_s"], first["critical"]) == (1, 5.5, 0.0, True)
    assert (last["start_s"], last["end_s"], last["node"]) == (6.5, 7.5, "node0")


def test_plan_shows_preloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When a process is loaded ahead."""
    tasks: list[dict[str, Any]] = [
        {"id": "load", "phases": [{"kind": "cpu", "duration_s": 10.0}]},
        {"id": "fit", "parents": ["load"], "phases": TRAIN[1:2], "warm_key": "torch", "warmup_s": 2.0},
    ]
    found = printed(capsys, "plan", write(tmp_path / "p.json", tasks), *CLUSTER)
    assert found["tasks"][1]["preload_s"] == pytest.approx(7.5)
    assert (found["tasks"][1]["warm"], found["makespan_s"]) == (True, 12.0)


def test_plan_counts_assumed_durations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A phase without a duration is planned with a prior, and said so."""
    tasks = [{"id": "a", "phases": [{"kind": "cpu"}]}, {"id": "b", "phases": [{"kind": "gpu", "gpus": 1}]}]
    path = write(tmp_path / "p.json", tasks)
    assert printed(capsys, "plan", path, *CLUSTER)["assumed_durations"] == 2
    assert run(["plan", path, *CLUSTER, "--limit", "1"]) == 0
    assert "2 unknown durations were assumed" in " ".join(capsys.readouterr().out.split())


# --- why --------------------------------------------------------------------------------------------------------------


def test_why_by_simulation(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each phase: when it was ready and after whom, how long it waited and for what."""
    found = printed(capsys, "why", file, "train2", *CLUSTER)
    cpu_phase, gpu_phase, _ = found["tasks"][0]["phases"]
    assert (cpu_phase["ready_s"], cpu_phase["after"], cpu_phase["waited_s"], cpu_phase["reason"]) == (
        1.0,
        "load",
        0.0,
        None,
    )
    assert (gpu_phase["ready_s"], gpu_phase["started_s"], gpu_phase["waited_s"]) == (2.0, 4.0, 2.0)
    assert gpu_phase["reason"]["kind"] == "capacity"
    assert "0 of 1 GPU wholly free" in gpu_phase["reason"]["text"]


def test_why_at_a_moment(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--at: what the engine says then."""
    found = printed(capsys, "why", file, "evaluate", "train2", *CLUSTER, "--at", "3")
    assert [(t["task"], t["kind"]) for t in found["tasks"]] == [("evaluate", "dependency"), ("train2", "capacity")]
    assert found["tasks"][0]["waiting_for"] == ["train1", "train2"]


def test_why_of_a_task_that_can_never_run(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No GPU at all: that is the answer, not an error."""
    (found,) = printed(capsys, "why", file, "evaluate", "--cpus", "4", "--at", "0")["tasks"]
    assert found["kind"] == "dependency"
    (found,) = printed(capsys, "why", file, "train1", "--cpus", "4")["tasks"]
    assert (found["phases"][0]["started_s"], found["phases"][0]["reason"]["kind"]) == (None, "infeasible")
    assert run(["why", file, "train1", "--cpus", "4"]) == 0
    assert "never started: no one node offers what all its phases need" in capsys.readouterr().out


def test_why_from_a_run_log(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same waits out of what was recorded, with who started meanwhile; also for people."""
    log = str(tmp_path / "run.jsonl")
    printed(capsys, "simulate", file, *CLUSTER, "--runlog", log)
    (found,) = printed(capsys, "why", log, "train2")["tasks"]
    assert found["workload"] == "pipe"
    assert [p["waited_s"] for p in found["phases"]] == [0.0, 2.0, 0.0]
    assert found["phases"][1]["reason"]["waiting_for"] == ["train1"]
    assert run(["why", log, "train2"]) == 0
    assert "gpu phase 1: ready at 2.000 s, waited 2.000 s (capacity)" in capsys.readouterr().out


def test_why_of_a_run_log_whose_ids_say_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks with a framework's own numbers are asked for by name, or by name and how the number begins; the answer has
    no number in it. Of a name that many have the longest waits come first, up to twenty; a name that is not there is
    answered with what there is."""
    ids = [f"{number:08x}" + "f" * 24 for number in range(28)]
    log = tmp_path / "run.jsonl"
    records: list[r.Record] = []
    for number, task in enumerate(ids):
        name = ("train", "train", *["leaf"] * 26)[number]
        records.append(r.TaskAdded(0.0, "pipe", task, name, (), (("gpu", 0.0, 1.0, 0),)))
        records.append(r.Ready(0.0, "pipe", task))
        records.append(r.Started(float(number), "pipe", task, node="n0"))
    write_run(log, r.Header(run_id="run", driver="ray", policy="egs", mode="on"), records)
    assert run(["why", str(log), "train"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if not line.startswith(" ")] == [
        "train-00000001 of pipe, started at 1.000 s",
        "train-00000000 of pipe, started at 0.000 s",
    ]
    assert "first train-00000000" in shown
    assert run(["why", str(log), "leaf-00000003", "--json"]) == 0
    assert [found["task"] for found in json.loads(capsys.readouterr().out)["tasks"]] == [ids[3]]
    assert run(["why", str(log), "nosuch"]) == 2
    assert "its tasks: train-00000000, train-00000001, leaf-00000002" in capsys.readouterr().err
    assert run(["why", str(log), "leaf"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    wanted = [f"leaf-{number:08x} of pipe, started at {number:.3f} s" for number in range(27, 7, -1)]
    assert heads == [*wanted, "and 6 more named leaf, which waited less"]


def test_why_of_what_runs_in_a_group_and_says_one_thing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A task without needs of its own, that was started on no node that the log knows: its phase is of no kind, no
    other start is named, and a reason that came twice is said once."""
    log = tmp_path / "run.jsonl"
    records: list[r.Record] = [
        *[r.TaskAdded(0.0, "w", task, task, (), (("cpu", 0.0, 0.0, 0),)) for task in ("trial", "other")],
        r.Ready(1.0, "w", "trial"),
        r.Held(1.0, "w", "trial", 0, "quota", "no quota"),
        r.Held(2.0, "w", "trial", 0, "capacity", "no room"),
        r.Started(2.5, "w", "other"),
        r.Held(3.0, "w", "trial", 0, "quota", "no quota"),
        r.Started(5.0, "w", "trial"),
    ]
    write_run(log, r.Header(run_id="run", driver="ray", policy="egs", mode="on"), records)
    assert run(["why", str(log), "trial"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "trial of w, started at 5.000 s",
        "  phase 0: ready at 1.000 s, waited 4.000 s (quota): no quota; no room",
    ]


def test_why_of_what_never_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A driver that was ended has tasks that wait: the log says for what, or what it knows of them."""
    log = tmp_path / "run.jsonl"
    one, two = (("gpu", 0.0, 1.0, 0),), (("gpu", 0.0, 2.0, 0),)
    records: list[r.Record] = [
        r.Capacity(0.0, "n0", 4.0, 1),
        *[r.TaskAdded(0.0, "w", task, task, (), one) for task in ("runs", "held", "let_go", "silent", "gone", "left")],
        r.TaskAdded(0.0, "w", "after", "after", ("runs",), one),
        r.TaskAdded(0.0, "w", "large", "large", (), two),
        *[r.Ready(0.0, "w", task) for task in ("runs", "held", "let_go", "left", "aborted")],
        r.Started(0.0, "w", "runs", node="n0"),
        r.Held(0.0, "w", "held", 0, "quota", "queue 'team' has no quota for that"),
        r.Granted(3.0, "w", "let_go", 0),
        r.Ended(4.0, "w", "gone", outcome="skipped"),
        r.TaskAdded(0.0, "w", "aborted", "aborted", (), one),
        r.Ended(5.0, "w", "aborted", outcome="aborted", reason="by ann"),
    ]
    write_run(log, r.Header(run_id="run", driver="ray", policy="egs", mode="on"), records)
    assert run(["why", str(log), "held", "let_go", "after", "large", "silent", "gone", "left", "aborted"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith(" ")]
    assert shown == [
        "gpu phase 0: ready at 0.000 s, never started: queue 'team' has no quota for that",
        "gpu phase 0: ready at 0.000 s, never started: it was let go at 3.000 s, and the log ends before its start",
        "not ready, as far as the log goes: it comes after runs, of which the log has no end",
        "not ready, as far as the log goes: it needs 2 GPUs on one node, and the largest had 1",
        "not ready, as far as the log goes: its framework has told of no start, and nothing that it waited for",
        "it was skipped at 4.000 s: its framework left it out, as what is in a branch that is not taken;"
        " the log says no more",
        "gpu phase 0: ready at 0.000 s, never started: the log ends before",
        "gpu phase 0: ready at 0.000 s, never started: aborted: by ann",
    ]


def test_why_of_what_was_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason that the log has; else what the ends before it say. What is in a group that was skipped is not in
    the log, which says that; what skipped itself had started."""
    log = tmp_path / "run.jsonl"
    parents = {
        "choose": (),
        "a": ("choose",),
        "b": ("a",),
        "bad": (),
        "lost": ("bad", "choose"),
        "no": ("choose",),
        "own": (),
    }
    records: list[r.Record] = [
        *[r.TaskAdded(0.0, "w", task, task, before) for task, before in parents.items()],
        *[r.Started(1.0, "w", task) for task in ("choose", "bad", "own")],
        r.Ended(2.0, "w", "choose"),
        r.Ended(2.0, "w", "bad", outcome="failed"),
        r.Ended(2.0, "w", "own", outcome="skipped"),
        *[r.Ended(3.0, "w", task, outcome="skipped") for task in ("a", "b", "lost")],
        r.Ended(3.0, "w", "no", outcome="skipped", reason="its condition is not met: x == 1"),
    ]
    write_run(log, r.Header(run_id="run", driver="airflow", policy="native"), records)
    assert run(["why", str(log), "a", "b", "lost", "no", "own"]) == 0
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith(" ")] == [
        "it was skipped at 3.000 s: choose had ended; its framework left it out, as what is in a branch that is not"
        " taken; the log says no more",
        "it was skipped at 3.000 s: a, before it, was skipped",
        "it was skipped at 3.000 s: bad, before it, failed",
        "it was skipped at 3.000 s: its condition is not met: x == 1",
        "phase 0: ready at 1.000 s, started at once; skipped",
    ]
    assert run(["why", str(log), "no.train"]) == 2
    told = "has no task 'no.train' (no was skipped at 3.000 s: its condition is not met: x == 1)"
    assert told in capsys.readouterr().err


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("simulate FILE", "--slots: no cluster is given"),
        ("simulate FILE --slots 0", "--slots: must be at least 1, not 0"),
        ("simulate FILE --slots -3", "--slots: must be at least 1, not -3"),
        ("simulate FILE --slots 2 --cpus 2", "--slots: cannot be combined"),
        ("simulate FILE --cpus 0", "--cpus: must be above 0"),
        ("simulate FILE --cpus nan", "--cpus: must be above 0"),
        ("simulate FILE --cpus 4 --gpus -1", "--gpus: must be 0 to 10000"),
        ("simulate FILE --cpus 4 --nodes 0", "--nodes: must be 1 to 10000"),
        (
            "simulate FILE --slots 2 --policy eggs",
            "--policy: unknown policy 'eggs' (did you mean 'egs'? known: egs, fifo",
        ),
        (
            "simulate FILE --slots 2 --durations guessed",
            "--durations: unknown 'guessed' (one of exact, predicted, blind)",
        ),
        ("simulate FILE --slots 2 --durations predicted", "--durations: predicted needs --history"),
        ("simulate FILE --slots 2 --failure-rate 1.5", "--failure-rate: must be between 0 and 1"),
        ("simulate FILE --slots 2 --bandwidth 0", "--bandwidth: must be a number above 0"),
        ("simulate FILE --slots 2 --max-wait -1", "--max-wait: must be a number of 0 or more"),
        ("simulate FILE --slots 2 --policy all --runlog x", "--runlog: takes the log of one run"),
        ("simulate FILE --cpus 4", "task 'train1': can never run here"),
        ("simulate missing.json --slots 2", "missing.json"),
        ("plan FILE --slots 2 --policy all", "--policy: unknown policy 'all'"),
        ("plan FILE --slots 2 --limit 0", "--limit: must be at least 1"),
        ("why FILE trian1 --slots 2", "has no task 'trian1' (did you mean 'train1'?)"),
        ("why FILE train1", "--slots: no cluster is given"),
        ("why FILE", "name a task of it (it has load, train1, train2, evaluate)"),
        ("why missing.jsonl", "missing.jsonl: no such file, and no number of a run"),
        ("why 7", "): start `egs serve`, or name one by EGS_URL"),
        ("why FILE train1 --slots 2 --at -1", "--at: must be a number of seconds"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    args: str, expected: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the option or place and what to do; nothing on stdout, no traceback."""
    assert run([file if word == "FILE" else word for word in args.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err[:7]) == ("", 1, "error: ")
    assert expected in err


def test_why_without_a_task_names_those_of_a_log(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that waited longest first, by the names that readers have for them."""
    log = str(tmp_path / "run.jsonl")
    printed(capsys, "simulate", file, *CLUSTER, "--runlog", log)
    assert run(["why", log]) == 2
    assert "name a task of it (the longest waits had train2, " in capsys.readouterr().err


def test_why_of_a_task_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As its author calls it, also where its id has the loop around it; what two are called has to be told apart."""
    phases = [{"kind": "cpu", "duration_s": 1.0}]
    tasks = [
        {"id": "for-loop-1.fit", "phases": phases},
        {"id": "t2", "name": "score", "phases": phases},
        {"id": "one.same", "phases": phases},
        {"id": "two.same", "phases": phases},
    ]
    path = write(tmp_path / "loop.json", tasks)
    found = printed(capsys, "why", path, "fit", "score", "--slots", "1")
    assert [one["task"] for one in found["tasks"]] == ["for-loop-1.fit", "t2"]
    assert run(["why", path, "same", "--slots", "1"]) == 2
    assert "has 2 tasks called 'same' (say which: one.same, two.same)" in capsys.readouterr().err


def test_why_of_a_run_logs_task_by_the_end_of_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind the group, branch or loop that it is in, where no two names end so; the turns of a loop have one name. A
    whole name goes before an end, and near ones are named where there is none."""
    log = tmp_path / "run.jsonl"
    named = {
        "condition-1.train": "condition-1.train",
        "condition-1.report": "condition-1.report",
        "condition-2.report": "condition-2.report",
        "loop-1[0].fit": "loop-1.fit",
        "loop-1[1].fit": "loop-1.fit",
        "night/score[3]": "night/score",
        "same": "same",
        "one.same": "one.same",
    }
    records = [
        record
        for task, name in named.items()
        for record in (r.TaskAdded(0.0, "w", task, name), r.Ready(0.0, "w", task))
    ]
    write_run(log, r.Header(run_id="run", driver="kubeflow", policy="egs"), records)
    for word, ids in (
        ("train", ["condition-1.train"]),
        ("fit", ["loop-1[0].fit", "loop-1[1].fit"]),
        ("score", ["night/score[3]"]),
        ("score[3]", ["night/score[3]"]),
        ("same", ["same"]),
    ):
        assert [one["task"] for one in printed(capsys, "why", str(log), word)["tasks"]] == ids
    for word, told in (
        ("report", "has 2 tasks called 'report' (say which: condition-1.report, condition-2.report)"),
        ("rain", "has no task 'rain' (its tasks: condition-1.train, "),
        ("conditon-1.train", "has no task 'conditon-1.train' (did you mean 'condition-1.train'?)"),
    ):
        assert run(["why", str(log), word]) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["graph LOG", "plan LOG --slots 1", "simulate LOG --slots 1", "replay LOG --on sim"]
)
def test_a_run_log_is_no_workload(command: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command that reads workloads says what it was given, and which commands read that."""
    log = str(tmp_path / "run.jsonl")
    printed(capsys, "simulate", file, *CLUSTER, "--runlog", log)
    assert run([log if word == "LOG" else word for word in command.split()]) == 2
    err = capsys.readouterr().err
    assert f"{log}: is a run log, not a workload" in err
    assert f"egs dashboard {log}" in err


def test_why_refuses_cluster_options_for_a_run_log(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log is what happened: there is nothing to simulate. Unknown tasks suggest."""
    log = str(tmp_path / "run.jsonl")
    printed(capsys, "simulate", file, *CLUSTER, "--runlog", log)
    assert run(["why", log, "train2", "--slots", "2"]) == 2
    assert "is a run log" in capsys.readouterr().err
    assert run(["why", log, "trian2"]) == 2
    assert "did you mean 'train2'?" in capsys.readouterr().err


def test_a_broken_history_is_an_error(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A history that cannot be read is said, not taken for an empty one."""
    broken = tmp_path / "h.db"
    broken.write_bytes(b"no database at all, but long enough to be looked at" * 50)
    args = ["simulate", file, *CLUSTER, "--durations", "predicted", "--history", str(broken)]
    assert run(args) == 2
    assert str(broken) in capsys.readouterr().err


def test_simulate_shows_limits_and_missed_deadlines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prices make a limit of cost; the JSON and the table name what was stopped and what was late."""
    tasks = [{"id": "a", "phases": [{"kind": "gpu", "gpus": 1, "duration_s": 100.0}], "max_cost": 20.0}]
    path = write(tmp_path / "dear.json", tasks, deadline_s=15.0)
    args = ["simulate", path, "--cpus", "2", "--gpus", "1", "--gpu-price", "3600"]
    out = printed(capsys, *args)
    assert (out["makespan_s"], out["failed"]) == (20.0, ["dear"])
    assert out["over_limit"] == {"dear/a": "over its limit of 20 in cost"}
    assert out["late_s"] == {"dear": 5.0}
    assert run(args) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "stopped: dear/a over its limit of 20 in cost" in text
    assert "late: dear 5.0 s under egs" in text
    assert run([*args, "--cpu-price", "-1"]) == 2
    assert "--cpu-price" in capsys.readouterr().err


def test_simulate_with_an_order_that_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs of 31 s and of 59 s by turns: their work is of one class, in which the one that came first goes first, while
    `dependents` starts the shorter ones first. The queue finds that out, and workloads take less time."""
    files = []
    for number in range(60):
        task = {"id": "t", "phases": [{"kind": "cpu", "duration_s": 31.0 if number % 2 else 59.0}]}
        files.append(write(tmp_path / f"{number}.json", [task], queue="q", arrival_s=float(number)))
    mean_s = {}
    for order in ("remaining_work", "learned"):
        queues = tmp_path / f"{order}.yaml"
        queues.write_text(f"queues: [{{name: q, order: {order}}}]\n")
        found = printed(capsys, "simulate", *files, "--slots", "1", "--queues", str(queues))
        mean_s[order] = found["mean_jct_s"]
    assert found["orders"] == {"q": "dependents"}
    assert mean_s["learned"] < 0.97 * mean_s["remaining_work"]


def test_a_workload_is_known_by_its_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--workload plan.yaml` of `egs split-model` writes JSON, which is YAML, too: no adapter is asked for it. What is
    no JSON goes to the adapter of that ending, and a compiled pipeline as JSON to the one whose fields it has."""
    named = write(tmp_path / "plan.yaml", TASKS)
    assert printed(capsys, "graph", named)["tasks"] == len(TASKS)
    for name, text in (("flow.yaml", "{a: 1}"), ("pipeline.yaml", '{"pipelineInfo": {"name": "p"}, "root": {}}')):
        (tmp_path / name).write_text(text)
        assert run(["graph", str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert "Traceback" not in told
        assert name in told
