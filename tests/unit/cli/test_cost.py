"""`egs cost` from the command line: tables, JSON, CSV, months, a real server's runs, and one-line errors."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from egs_core.cli.app import run
from egs_core.runlog.io import write_run
from egs_core.runlog.records import Ended, Header, Record, Started, TaskAdded, Used, Work, WorkloadSubmitted
from egs_core.server.runs import Device, Offer
from tests.unit.server.real_app import FILE, RealApp

Out = pytest.CaptureFixture[str]
RAY = Path(__file__).resolve().parents[2] / "fixtures" / "ray_history" / "pushed.events.jsonl"
NOVEMBER = 1_793_491_200.0  # 2026-11-01
PRICES = "currency: EUR\nflavors: [{name: a, prices: [{since: 2026-10-01, on_demand: 2}]}]\n"
TEAMS = "teams: [{name: vision}]\nqueues: [{name: images, team: vision}, {name: rest}]\n"


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Four hours held from an hour before November on, of which three used; names that look like something else."""
    records: list[Record] = [
        WorkloadSubmitted(0.0, "w", "=HYPERLINK(1)", "[red]ann", "images"),
        TaskAdded(0.0, "w", "t", "fit\x1b[2J", phases=(("gpu", 1.0, 1.0, 0),)),
        Started(0.0, "w", "t", node="n", gpus=1.0),
        Used(0.0, 3 * 3600.0, "w", "t"),
        Ended(4 * 3600.0, "w", "t"),
    ]
    write_run(tmp_path / "log.jsonl", Header(driver="ray", mode="observe", started_at=NOVEMBER - 3600), records)
    return str(tmp_path / "log.jsonl")


@pytest.fixture
def prices(tmp_path: Path) -> str:
    (tmp_path / "prices.yaml").write_text(PRICES)
    return str(tmp_path / "prices.yaml")


def told(capsys: Out, *arguments: str) -> dict[str, Any]:
    assert run(["cost", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json(log: str, prices: str, capsys: Out) -> None:
    """The keys that are promised, the same in each table; money at two an hour."""
    found = told(capsys, log, "--prices", prices)
    keys = {"gpu_h_held": 4.0, "gpu_h_used": 3.0, "gpu_h_wasted": 1.0, "cost": 8.0, "cost_wasted": 2.0}
    assert {name: found[name] for name in keys} == keys
    assert (found["currency"], found["month"]) == ("EUR", None)
    tables = {kind: found[f"by_{kind}"] for kind in ("team", "pipeline", "task", "user")}
    assert tables == {
        "team": {"images": keys},
        "pipeline": {"=HYPERLINK(1)": keys},
        "task": {"fit\x1b[2J": keys},
        "user": {"[red]ann": keys},
    }


def test_a_month(log: str, prices: str, capsys: Out) -> None:
    """Three of the four hours are in November, one in October."""
    found = [told(capsys, log, "--prices", prices, "--month", month) for month in ("2026-10", "2026-11", "2026-12")]
    assert [(one["gpu_h_held"], one["gpu_h_used"], one["cost"]) for one in found] == [(1, 1, 2), (3, 2, 6), (0, 0, 0)]


def test_without_prices_one_line_says_how_to_give_them(log: str, capsys: Out) -> None:
    assert run(["cost", log, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["cost"] is None
    assert "--prices FILE" in shown.err
    assert shown.err.count("\n") == 1


def test_tables_show_names_as_they_are(log: str, prices: str, capsys: Out) -> None:
    """Neither markup nor what a terminal obeys."""
    assert run(["cost", log, "--prices", prices]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("GPU hours: 4.00 held, 3.00 used, 1.00 wasted; cost: 8.00 EUR, 2.00 of it wasted\n")
    assert "[red]ann" in shown
    assert "\x1b" not in shown


def test_what_is_less_than_a_cent_is_not_nothing(log: str, tmp_path: Path, capsys: Out) -> None:
    """Not shown as 0.00."""
    cheap = tmp_path / "cheap.yaml"
    cheap.write_text("flavors: [{name: a, prices: [{since: 2026-01-01, on_demand: 0.001}]}]")
    assert run(["cost", log, "--prices", str(cheap)]) == 0
    assert "; cost: <0.01, <0.01 of it wasted\n" in capsys.readouterr().out


def test_csv_is_safe_to_open(log: str, capsys: Out) -> None:
    """One line a name and a total; no name is a formula."""
    assert run(["cost", log, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["by"], row["gpu_h_held"], row["cost"]) for row in rows] == [
        (kind, "4.0", "") for kind in ("total", "team", "pipeline", "task", "user")
    ]
    assert rows[2]["name"] == "'=HYPERLINK(1)"


def test_what_a_million_units_took(tmp_path: Path, prices: str, capsys: Out) -> None:
    """In JSON and as a table: six tasks, half a GPU hour each, of 250,000 tokens; no rating where nobody tells."""
    records: list[Record] = [WorkloadSubmitted(0.0, "w", "train")]
    for number in range(6):
        task = f"t{number}"
        records += [TaskAdded(0.0, "w", task, "fit"), Started(0.0, "w", task, node="n", gpus=1.0, cpus=2.0)]
        records += [Work(1800.0, "w", task, amounts={"tokens": 250_000.0}), Ended(1800.0, "w", task)]
    path = str(tmp_path / "told.jsonl")
    write_run(Path(path), Header(driver="ray", started_at=NOVEMBER), records)
    (row,) = told(capsys, path, "--prices", prices)["per_unit"]
    assert row == {
        "unit": "tokens",
        "pipeline": "train",
        "task": "fit",
        "flavor": "a",
        "provider": "",
        "bought": "on_demand",
        "per": 1_000_000,
        "tasks": 6,
        "amount": 1_500_000.0,
        "gpu_min": {"value": 120.0, "low": 120.0, "high": 120.0},
        "cpu_min": {"value": 240.0, "low": 240.0, "high": 240.0},
        "cost": {"value": 4.0, "low": 4.0, "high": 4.0},
    }
    assert run(["cost", path, "--prices", prices]) == 0
    assert "for 1,000,000 units of work" in capsys.readouterr().out
    assert told(capsys, path, "--month", "2026-12")["per_unit"] == []


def test_teams_are_those_of_the_file_of_queues(log: str, tmp_path: Path, capsys: Out) -> None:
    (tmp_path / "site.yaml").write_text(TEAMS)
    assert told(capsys, log, "--queues", str(tmp_path / "site.yaml"))["by_team"].keys() == {"vision"}


def test_a_native_run_costs_what_its_audit_says(tmp_path: Path, capsys: Out) -> None:
    """Ray's own history of a run without EGS: the hours of `egs audit`."""
    pytest.importorskip("egs_ray", reason="the history is of Ray")
    native = str(tmp_path / "native.jsonl")
    assert run(["audit", "--events", str(RAY), "--runlog", native, "--json"]) == 0
    audited = json.loads(capsys.readouterr().out)["total"]
    found = told(capsys, native)
    assert found["gpu_h_held"] * 3600 == pytest.approx(audited["held_s"], abs=1e-4)
    assert found["gpu_h_used"] * 3600 == pytest.approx(audited["used_s"], abs=1e-4)
    assert found["gpu_h_wasted"] > 0


def test_logs_add_up_and_each_counts_once(log: str, tmp_path: Path, capsys: Out) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(Path(log).read_bytes())
    assert told(capsys, log, str(copy))["gpu_h_held"] == 8.0
    assert run(["cost", log, str(tmp_path / "." / "log.jsonl")]) == 2
    assert "is named twice" in capsys.readouterr().err


def test_a_copy_of_a_log_is_known_by_its_run(tmp_path: Path, capsys: Out) -> None:
    """By its header, whatever the file is called; another start of the same run is none, and no simulation is."""
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]

    def code(*starts: float) -> int:
        for path, start in zip(paths, starts, strict=True):
            write_run(Path(path), Header(driver="ray", run_id="r1", started_at=start), [])
        return run(["cost", *paths])

    assert code(NOVEMBER, NOVEMBER) == 2
    assert f"{paths[1]}: is of the same run as {paths[0]}" in capsys.readouterr().err
    assert [code(NOVEMBER, NOVEMBER + 1), code(0.0, 0.0)] == [0, 0]


def test_a_log_that_was_cut_off_is_counted_up_to_there(log: str, capsys: Out) -> None:
    """What was open counts until the last record."""
    content = Path(log).read_bytes()
    Path(log).write_bytes(content[: content.rindex(b'{"r":"ended"') + 9])
    assert run(["cost", log, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["gpu_h_held"] == 0.0
    assert "was cut off" in shown.err


def test_what_emulated_gpus_cost_is_said_to_be_made_up(tmp_path: Path, prices: str, capsys: Out) -> None:
    write_run(tmp_path / "log.jsonl", Header(started_at=NOVEMBER, emulated_gpus=True), [])
    assert run(["cost", str(tmp_path / "log.jsonl"), "--prices", prices]) == 0
    assert "log.jsonl is of emulated GPUs" in capsys.readouterr().err


def test_a_statement_of_a_month(log: str, prices: str, tmp_path: Path, capsys: Out) -> None:
    """As a page, named after its month where no name is given, with names as text; as CSV and JSON the same as by
    --csv and --json."""
    page = tmp_path / "november.html"
    asked = [log, "--prices", prices, "--month", "2026-11"]
    assert run(["cost", *asked, "--format", "page", "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    html = page.read_text(encoding="utf-8")
    assert "2026-11: 6.00 EUR" in html
    assert all(text in html for text in ("By team", "By pipeline", "By user", "=HYPERLINK(1)", "[red]ann"))
    assert "\x1b" not in html, "the page has no tasks, and no control character"
    for form in ("csv", "json"):
        assert run(["cost", *asked, "--format", form]) == 0
        by_format = capsys.readouterr().out
        assert run(["cost", *asked, f"--{form}"]) == 0
        assert capsys.readouterr().out == by_format


def test_a_statement_goes_into_a_file_of_its_month(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    """Without prices it has hours, and says why there is no money."""
    monkeypatch.chdir(tmp_path)
    assert run(["cost", log, "--month", "2026-11", "--format", "page"]) == 0
    html = (tmp_path / "statement-2026-11.html").read_text(encoding="utf-8")
    assert "2026-11: 3.00 GPU hours" in html
    assert "no cost: --prices FILE says what a GPU costs" in html
    assert capsys.readouterr().out == "statement-2026-11.html\n"


def test_an_empty_log_costs_nothing(tmp_path: Path, prices: str, capsys: Out) -> None:
    write_run(tmp_path / "empty.jsonl", Header(), [])
    found = told(capsys, str(tmp_path / "empty.jsonl"), "--prices", prices)
    assert (found["gpu_h_held"], found["cost"], found["by_team"]) == (0.0, 0.0, {})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["{log}", "--month", "2026-13"], "--month: '2026-13' is no month (write it as 2026-11)"),
        (["{log}", "--month", "9999-12"], "--month: '9999-12' is not between 1970-01 and 9998-12"),
        (["{log}", "--prices", "{none}"], "none.yaml line 2: flavors[0].prices[0].since: day "),
        (["{log}", "--month", ""], "--month: '' is no month"),
        (["{log}", "--month", "november"], "--month: 'november' is no month"),
        (["{log}", "--json", "--csv"], "are ways to print it"),
        (["{log}", "--prices", "{bad}"], "bad.yaml line 2: flavors[0].prices[0].since: must be a date"),
        (["{log}", "--format", "pdf"], "--format: 'pdf' is unknown (page or csv or json)"),
        (["{log}", "--format", "csv", "--json"], "are ways to print it"),
        (["{log}", "-o", "x.html"], "--output: goes with --format page"),
        (["{log}", "--month", "\uff12026-11"], "is no month (write it as 2026-11)"),
        (["{log}", "--format", "page", "--prices", "{rates}", "-o", "{log}"], "log.jsonl: is one of the files that"),
        (["{log}", "--format", "page", "--prices", "{rates}", "-o", "{rates}"], "rates.yaml: is one of the files that"),
        (["{log}", "--format", "page", "--queues", "{teams}", "-o", "{linked}"], "linked.html: is one of the files"),
        (["{log}", "--format", "page", "--prices", "{rates}", "-o", "{folder}/no/x.html"], "its folder is not there"),
        (["{log}", "--format", "page", "--prices", "{rates}", "-o", "/dev/full"], "/dev/full: cannot be written: "),
        (["{log}", "--format", "page", "--prices", "{rates}", "-o", "{folder}"], "is a folder (name a file to write"),
        (["{bad}"], "bad.yaml:1: is not a run log"),
        (["{broken}"], "broken.jsonl:3: not a run log record"),
        (["{log}", "--prices", "{late}"], "late.yaml: flavor 'a' has no price on 2026-10-31, when a GPU was held"),
        (["--queues", "{bad}"], "--queues: does nothing without RUNLOG: "),
        (["--queues", "{bad}", "--server"], "--queues: does nothing without RUNLOG: "),
        ([], "no run log is named, and no EGS server is here"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], problem: str, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    """Exit code 2 and the place."""
    monkeypatch.setenv("EGS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("EGS_URL", raising=False)
    files = {
        "bad": ("bad.yaml", "flavors:\n  - {name: a, prices: [{since: soon, on_demand: 1}]}\n"),
        "none": ("none.yaml", "flavors:\n  - {name: a, prices: [{since: 2026-02-30, on_demand: 1}]}\n"),
        "broken": ("broken.jsonl", "".join(Path(log).read_text().splitlines(keepends=True)[:2]) + '{"r":"none"}\n'),
        "late": ("late.yaml", PRICES.replace("2026-10-01", "2026-11-01")),
        "rates": ("rates.yaml", PRICES),
        "teams": ("teams.yaml", TEAMS),
    }
    for name, text in files.values():
        (tmp_path / name).write_text(text)
    paths = {key: str(tmp_path / name) for key, (name, _) in files.items()} | {"log": log}
    paths["folder"] = str(tmp_path)
    paths["linked"] = str(tmp_path / "linked.html")
    (tmp_path / "linked.html").hardlink_to(tmp_path / "teams.yaml")
    assert run(["cost", *[word.format(**paths) for word in arguments]]) == 2
    shown = capsys.readouterr()
    assert problem in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")
    assert (tmp_path / "rates.yaml").read_text() == PRICES, "what a page is made of is not written over"


def test_of_a_real_server(monkeypatch: pytest.MonkeyPatch, log: str, prices: str, capsys: Out) -> None:
    """Its runs alone where no log is named, beside logs with --server; a team's token sees its own."""
    app = RealApp(FILE, Offer("host", (Device("0", "emulated"), Device("1", "emulated")), 8.0, 1 << 40))
    try:
        monkeypatch.setenv("EGS_URL", f"http://127.0.0.1:{app.port}")
        for team, queue in (("vision", "images"), ("speech", "sounds")):
            asker = app.token("submitter", team, name=f"{team}-ci")
            view = asker.submit(f"cost-{team}", gpus=1, queue=queue).told
            path, token = f"/v1/runs/{view['id']}", view["lease"]["token"]
            assert asker.post(f"{path}/claim", {"token": token}).status == 200
            end = {"token": token, "outcome": "succeeded", "exit_code": 0, "work": {"images": 3}}
            assert asker.post(f"{path}/end", end).status == 200
        monkeypatch.setenv("EGS_TOKEN", app.admin.token)
        found = told(capsys, "--prices", prices)
        assert found["by_team"].keys() == {"vision", "speech"}
        assert found["by_user"].keys() == {"vision-ci", "speech-ci"}
        assert found["cost"] == pytest.approx(2 * found["gpu_h_held"], abs=1e-6)
        assert found["gpu_h_held"] > 0
        assert [(row["unit"], row["amount"], row["tasks"]) for row in found["per_unit"]] == [("images", 6.0, 2)]
        assert told(capsys, log)["by_team"].keys() == {"images"}
        assert run(["cost", log, "--server", "--json"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["by_team"].keys() == {"images", "vision", "speech"}
        assert "inside of `egs run` counts twice" in shown.err
        assert "the site server has emulated GPUs" in shown.err
        assert "counts as used while its command runs" in shown.err
        monkeypatch.setenv("EGS_TOKEN", app.token("viewer", "speech").token)
        assert told(capsys)["by_team"].keys() == {"speech"}
    finally:
        app.close()
