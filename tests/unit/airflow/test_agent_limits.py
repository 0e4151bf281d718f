"""Limits on Airflow: where they are stated, that the smaller one holds, and which is reached when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import egs_core as egs
from egs_airflow.agent.declare import Ordering, declare, ordering
from egs_airflow.agent.limits import (
    load_rules,
    may_requeue,
    reached,
    run_limits,
    stated_limits,
    task_limits,
)
from egs_core.engine.specs import NO_LIMITS, Limits
from egs_core.errors import InputError

RULES = """
limits:
  - dag: train_*
    task: fit
    limits: {max_runtime: 2h, max_gpu_time: 1h, on_limit: requeue}
  - dag: "*"
    limits: {max_runtime: 10h}
  - dag: train_*
    run: {max_gpu_time: 40h}
"""


def _rules(tmp_path: Path, text: str = RULES) -> Any:
    path = tmp_path / "limits.yaml"
    path.write_text(text)
    return load_rules(path)


def test_the_smaller_limit_holds(tmp_path: Path) -> None:
    """A task's own limit and those of all rules that name it; what follows says the first that says anything."""
    rules = _rules(tmp_path)
    assert task_limits(rules, "train_a", "fit", "{}") == Limits(7200.0, 3600.0, on_limit="requeue")
    assert task_limits(rules, "train_a", "load", "{}") == Limits(36_000.0)
    own = "{'egs': {'max_runtime': '1h', 'on_limit': 'fail'}, 'pod_override': None}"
    assert task_limits(rules, "train_a", "fit", own) == Limits(3600.0, 3600.0, on_limit="fail")
    assert run_limits(rules, "train_a") == Limits(None, 144_000.0)
    assert run_limits(rules, "other") == NO_LIMITS


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("limits: [{dag: a, limits: {max_runtme: 2h}}]", r"line 1.*max_runtme"),
        ("limits: [{dag: a, limits: {max_runtime: -2}}]", r"line 1.*"),
        ("limits: [{dag: a, limits: {max_runtime: 0}}]", r"line 1.*max_runtime.*more than 0"),
        ("limits: [{dag: a, run: {max_gpu_time: 0s}}]", r"line 1.*max_gpu_time.*more than 0"),
        ("limits: [{dag: a, run: {max_cost: 3}}]", r"limits\[0\]: max_cost or idle_timeout is not known on Airflow"),
        ("limits: 3", r"limits"),
    ],
)
def test_a_file_that_means_nothing(tmp_path: Path, text: str, problem: str) -> None:
    """An InputError names the file and the place in it."""
    with pytest.raises(InputError, match=problem) as caught:
        _rules(tmp_path, text)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "config", ["{'egs': 3}", "{'egs': {'max_runtime': 'soon'}}", "{'egs': {'max'", "{'egs': <V1>}"]
)
def test_a_config_that_means_nothing(config: str, caplog: pytest.LogCaptureFixture) -> None:
    """The task has no limits of its own; one warning names it."""
    assert stated_limits(config, "d.t") == NO_LIMITS
    assert caplog.text.count("d.t: executor_config['egs'] are no limits") == 1


def test_which_limit_is_reached() -> None:
    """Time counts since the start, GPU time by the slots and on top of what earlier tries used; the first counts."""
    limits = Limits(100.0, 300.0, on_limit="requeue")
    assert reached(limits, 1000.0, 1099.0, gpus=2.0) == ("", "")
    assert reached(limits, 1000.0, 1100.0, gpus=2.0) == ("over its limit of 100 s", "requeue")
    assert reached(limits, 1000.0, 1075.0, gpus=4.0) == ("over its limit of 300 s of GPU time", "requeue")
    assert reached(Limits(max_gpu_s=300.0), 1000.0, 1050.0, gpus=2.0, used_gpu_s=200.0)[1] == "fail"
    assert reached(Limits(max_gpu_s=300.0), 1000.0, 1e6, gpus=0.0) == ("", "")
    assert [may_requeue(number) for number in (1, 3, 4)] == [True, True, False]


def test_hints_reach_the_agent() -> None:
    """Limits that a function hints at are in the executor_config, also of a mapped task; what the user wrote stays, and
    nothing is added where there is no limit."""

    @egs.task(max_runtime="2h", max_gpu_time=60)
    def limited() -> None: ...

    @egs.task(gpus=1)
    def free() -> None: ...

    wanted = {"max_runtime": 7200.0, "max_gpu_time": 60.0}
    plain = SimpleNamespace(python_callable=limited, is_mapped=False, executor_config={"pod_override": 1})
    declare(plain)
    assert plain.executor_config == {"pod_override": 1, "egs": wanted}
    assert stated_limits(str(plain.executor_config), "d.t") == Limits(7200.0, 60.0)
    mapped = SimpleNamespace(partial_kwargs={"python_callable": limited}, is_mapped=True, executor_config={})
    declare(mapped)
    assert mapped.partial_kwargs["executor_config"] == {"egs": wanted}
    for function, config in ((limited, {"egs": {"max_runtime": 1}}), (free, {})):
        left = SimpleNamespace(python_callable=function, is_mapped=False, executor_config=dict(config))
        declare(left)
        assert left.executor_config == config


def test_what_changes_the_order_reaches_the_agent(caplog: pytest.LogCaptureFixture) -> None:
    """In the executor_config of a task, from its hints or by hand, as REST shows it; limits beside it stay limits. What
    means nothing is one warning that names the task."""

    @egs.task(gpus=1, priority=-3, max_wait="10s", deadline="2h", expect=[5, "1min", 5], max_runtime=60)
    def fit() -> None:
        with egs.gpu():
            pass

    task = SimpleNamespace(python_callable=fit, is_mapped=False, executor_config={})
    declare(task)
    told = {"max_runtime": 60.0, "priority": -3, "max_wait": 10.0, "deadline": 7200.0, "expect": 70.0}
    assert task.executor_config == {"egs": told}
    text = str(task.executor_config)
    assert ordering(text, "d.t") == Ordering(-3, 10.0, 7200.0, 70.0)
    assert stated_limits(text, "d.t") == Limits(60.0)
    by_hand = {"egs": {"priority": 4, "max_wait": "2min", "expect": ["1min", 5]}, "pod_override": object()}
    assert ordering(by_hand, "d.t") == Ordering(4, 120.0, None, 65.0)
    others: list[object] = ["{}", {}, "{'egs': {'priority': <V1>}}", None]
    assert [ordering(other, "d.t") for other in others] == [Ordering()] * 4
    assert not caplog.records
    assert ordering({"egs": {"priority": "high"}}, "d.t") == Ordering()
    assert [record.getMessage() for record in caplog.records] == [
        "egs: d.t: executor_config: egs['priority']: 'high' is not a whole number"
    ]


def test_files_that_no_agent_can_find(caplog: pytest.LogCaptureFixture) -> None:
    """A path that is relative is one warning where the DAG is parsed, with the task; the others are staged."""

    @egs.task(preload=[egs.files("/models/m.pt", "here.pt")])
    def fit() -> None: ...

    task = SimpleNamespace(python_callable=fit, is_mapped=False, executor_config={}, dag_id="train", task_id="fit")
    declare(task)
    assert task.executor_config == {"egs": {"files": ["/models/m.pt"]}}
    assert [record.getMessage() for record in caplog.records] == [
        "egs: train.fit: egs.files('here.pt') is relative, so no agent can read it ahead: name the whole path"
    ]
