"""The page of a driver's tasks, and the plan ahead."""

from __future__ import annotations

import json

from egs_core.client.ahead import Ahead, DriverTasksView, Planned, TaskOutline
from egs_core.dashboard.driver_tasks import plan_parts, task_parts
from egs_core.dashboard.views import encoded
from tests.unit.dashboard.test_site_workloads import outline, texts
from tests.unit.dashboard.test_snapshot import EVIL
from tests.unit.dashboard.test_snapshot import run as view

NOW = 1000.0


def driver(*tasks: TaskOutline) -> DriverTasksView:
    return DriverTasksView(NOW, "r1", "train.py", "ray", "ann", "images", tasks)


def task(number: int, name: str, state: str, *parents: int, **more: object) -> TaskOutline:
    return TaskOutline(number, f"{number:040x}", name, "flow", state, parents, **more)  # type: ignore[arg-type]


def test_the_page_of_a_driver() -> None:
    """Each task by a name that tells it from others, with its state, how far it is and why it waits; the critical path
    by what is believed."""
    where = {"progress": "step 12, loss 0.5", "told_at": 995.0}
    parts = encoded(
        task_parts(
            driver(
                task(1, "load", "succeeded", seconds=5.0),
                task(2, "fit", "running", 1, seconds=9.0, since=990.0, node="n", devices=(1,), gpus=1.0, **where),
                task(3, "fit", "waiting", 1, seconds=2.0, since=990.0, why="needs 1 GPU", is_warm=True),
                task(4, "end", "pending", 2, 3),
            )
        )
    )
    assert "r1 train.py (ray)" in texts(parts, "title")
    assert "load → fit-00000000 → end" in texts(parts, "path")
    rows = texts(parts, "runs")
    assert '{"data-since":"995"}' in parts["runs"].decode()
    for words in ("step 12, loss 0.5", "needs 1 GPU", "waiting, loaded ahead", "n, GPU 1", "9\u00a0s"):
        assert words in rows, words
    assert rows.index("running") < rows.index("waiting") < rows.index("succeeded")
    assert parts["graph"].decode().count('["rect",') == 4
    assert texts(encoded(task_parts(driver())), "title").endswith("no task yet")


def test_ten_thousand_tasks_are_a_few_boxes() -> None:
    """Those of a name are one; of the table the first rows, and how many more there are."""
    many = [task(n, f"stage{n % 3}", "pending", *([n - 3] if n >= 3 else [])) for n in range(10_000)]
    parts = encoded(task_parts(driver(*many)))
    assert parts["graph"].decode().count('["rect",') == 3
    assert "and 9,800 more" in texts(parts, "runs")
    assert sum(map(len, parts.values())) < 200_000


def test_the_plan() -> None:
    """What starts and ends next, runs and tasks by their time; what is loaded and kept; and that there is nothing."""
    waiting = [view(1, "waiting", reason="needs 1 GPU", starts_in_s=60.0), view(2, "waiting", starts_in_s=None)]
    runs = [
        outline(3, "fit", "running", started_at=990.0, expected_s=100.0),
        outline(4, "free", "running", started_at=990.0),
        outline(5, "lab", "running", started_at=990.0, is_request=True, ends_at=1020.0),
        outline(6, "boxed", "running", started_at=990.0, expected_s=500.0, ends_at=1030.0),
    ]
    ahead = Ahead(
        NOW,
        loaded=(Planned("r1", "t9", "flow", "ann", node="n", state="warm"),),
        kept=(Planned("r1", "t8", "flow", "ann", "q", "n", 1.0, 1030.0),),
        starts=(Planned("r1", "t7", "flow", "ann", gpus=1.0, at=1010.0),),
    )
    parts = encoded(plan_parts(ahead, waiting, runs, NOW))
    starts = texts(parts, "starts")
    assert starts.index("t7 of r1") < starts.index("1 job1")
    assert "job2" not in starts
    assert [moment in parts["starts"].decode() for moment in ('{"data-at":"1010"}', '{"data-at":"1060"}')] == [True] * 2
    ends = texts(parts, "ends")
    assert "4 free" not in ends
    assert ends.index("5 lab") < ends.index("6 boxed") < ends.index("3 fit")
    assert [f'{{"data-at":"{at}"}}' in parts["ends"].decode() for at in (1020, 1030, 1090)] == [True] * 3
    assert "t9 n warm r1" in texts(parts, "loaded")
    assert "t8 n" in texts(parts, "kept")
    nothing = encoded(plan_parts(Ahead(NOW), [], [], NOW))
    assert all("class" in json.loads(nothing[name])[0][1] for name in ("starts", "ends", "loaded", "kept"))


def test_names_are_texts() -> None:
    """Of a driver, its tasks and reasons."""
    found = DriverTasksView(
        NOW, "r1", EVIL, "ray", EVIL, EVIL, (TaskOutline(1, EVIL, EVIL, EVIL, "waiting", why=EVIL),)
    )
    plan = Planned("r1", EVIL, EVIL, EVIL, EVIL, EVIL)
    ahead = Ahead(NOW, (plan,), (plan,), (plan,))
    parts = encoded(task_parts(found)) | encoded(plan_parts(ahead, [], [], NOW))
    assert all('["script"' not in part.decode() for part in parts.values())
    assert EVIL in texts(parts, "runs")
    assert EVIL in texts(parts, "loaded")
