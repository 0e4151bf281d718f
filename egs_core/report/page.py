"""The page itself: one HTML text with its style, script and data inside. Nothing is fetched when it is opened."""

from __future__ import annotations

from datetime import UTC, datetime

from egs_core.errors import counted
from egs_core.report import units
from egs_core.report.chart_data import pipelines_of, run_chart
from egs_core.report.compare import (
    Card,
    Comparison,
    Row,
    Shown,
    cards,
    compared,
    device_name,
    gpu_count,
    headline,
    shown_runs,
    table_rows,
)
from egs_core.report.html import Markup, asset, join, json_script, page_head, tag
from egs_core.runlog.io import Run

COLOURS = 8
EMULATED = "emulated GPUs"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render_page(runs: list[Run], *, compare: bool = True) -> str:
    """The report on one or more runs as HTML. compare: say how the runs differ; else each is shown for itself."""
    shown = shown_runs(runs)
    comparison = compared(shown) if compare else None
    title = headline(comparison, shown[0]) if compare or len(shown) == 1 else f"{len(shown)} runs, not compared"
    body = tag(
        "main",
        _top(shown, title, cards(comparison, shown[0]) if compare or len(shown) == 1 else [], comparison),
        _timelines(shown),
        _over_time(shown),
        _metrics(shown),
        _devices(shown),
        _tenants(shown),
        _definitions(),
    )
    data = json_script("egs-data", {"runs": [run_chart(s.line, s.title) for s in shown]})
    script = Markup(f"<script>{asset('page.js')}</script>")
    html = tag("html", page_head(f"EGS report: {title}", POLICY), tag("body", body, data, script), lang="en")
    return f"<!doctype html>\n{html}\n"


# --- top --------------------------------------------------------------------------------------------------------------


def _top(shown: list[Shown], title: str, made: list[Card], comparison: Comparison | None) -> Markup:
    before = comparison.names[0] if comparison else ""
    return tag(
        "header",
        tag("p", "EGS report", class_="eyebrow"),
        tag("h1", title),
        tag("ul", *(_chip(s) for s in shown), class_="chips"),
        tag("div", *(_card(card, before) for card in made), class_="cards"),
    )


def _chip(shown: Shown) -> Markup:
    """A run's name and what must be known to read its figures."""
    header = shown.run.header
    facts = [header.driver, _policy(shown), header.mode and f"mode {header.mode}", _when(header.started_at)]
    text = " · ".join(fact for fact in facts if fact)
    return tag(
        "li",
        tag("strong", shown.title),
        f" {text}",
        _marks(_badge(shown), tag("span", "log cut off", class_="badge") if shown.run.truncated else None),
    )


def _policy(shown: Shown) -> str:
    policy = shown.run.header.policy
    return f"policy {policy}" if policy and policy != shown.title else ""


def _when(started_at: float) -> str:
    """UTC, to the minute; a simulation has no date."""
    try:
        return f"{datetime.fromtimestamp(started_at, UTC):%Y-%m-%d %H:%M} UTC" if started_at > 0 else ""
    except (ValueError, OverflowError, OSError):
        return ""


def _card(card: Card, before: str) -> Markup:
    chip = None
    if card.change:
        word = {True: "better", False: "worse", None: ""}[card.better]
        chip = tag("span", card.change, tag("span", f" {word}", class_="unseen"), class_=f"change {word}")
    was = tag("p", f"{before}: ", tag("span", card.before), class_="was") if before else None
    return tag("div", tag("h2", card.name), tag("p", card.value, class_="value"), chip, was, class_="card")


# --- charts -----------------------------------------------------------------------------------------------------------


def _timelines(shown: list[Shown]) -> Markup:
    return tag(
        "section",
        tag("h2", "What ran where"),
        tag("p", "One row a device; all runs on one time axis. Tap or point at a bar to read it.", class_="note"),
        tag("div", _colour_choice(), _zoom(), class_="tools"),
        *(_legend(mode, shown) for mode in ("pipeline", "kind")),
        *(_timeline(number, s) for number, s in enumerate(shown)),
        tag("noscript", tag("p", "The charts need JavaScript; all figures are in the tables below.")),
    )


def _colour_choice() -> Markup:
    choices = [
        tag(
            "label",
            tag("input", type="radio", name="colour", value=mode, checked=mode == "pipeline"),
            f" {mode}",
        )
        for mode in ("pipeline", "kind")
    ]
    return tag("fieldset", tag("legend", "Colour by"), *choices)


def _zoom() -> Markup:
    buttons = [("out", "−", "Zoom out"), ("in", "+", "Zoom in"), ("all", "All", "Show the whole time")]  # noqa: RUF001  # the sign, not a hyphen
    made = [tag("button", text, type="button", data_zoom=what, aria_label=label) for what, text, label in buttons]
    return tag("div", *made, class_="zoom", role="group", aria_label="Zoom")


def _legend(mode: str, shown: list[Shown]) -> Markup:
    """Colours of one mode, and the patterns, which are the same in both."""
    if mode == "pipeline":
        names = _pipeline_names(shown)
        count = len(names)
        entries = [(f"c{n}", units.short(name)) for n, name in enumerate(names[:COLOURS])]
        more = f"and {count - COLOURS} more, the colours repeat" if count > COLOURS else None
    else:
        entries, more = [("kind-cpu", "CPU phase"), ("kind-gpu", "GPU phase")], None
    patterns = [("p-unused", "GPU held, not used"), ("p-cold", "cold start"), ("p-preload", "preload")]
    items = [tag("li", tag("span", class_=f"swatch {swatch}"), text) for swatch, text in [*entries, *patterns]]
    extra = tag("li", more) if more else None
    return tag("ul", *items, extra, class_="legend", data_colour=mode, hidden=mode != "pipeline")


def _pipeline_names(shown: list[Shown]) -> list[str]:
    """The names behind the colours; numbered where the runs do not have the same pipelines in the same order."""
    by_run = [pipelines_of(s.line) for s in shown]
    longest = max(by_run, key=len)
    if all(names == longest[: len(names)] for names in by_run):
        return longest
    return [f"pipeline {n + 1}" for n in range(len(longest))]


def _timeline(number: int, shown: Shown) -> Markup:
    metrics = shown.metrics
    label = (
        f"{shown.title}: {counted(metrics.phases, 'phase')} on {counted(gpu_count(shown), 'GPU')} "
        f"in {units.seconds(metrics.makespan_s)}. The arrow keys go from phase to phase."
    )
    canvas = tag("canvas", tabindex=0, role="application", aria_label=label, data_timeline=number)
    table = tag("details", tag("summary", f"The phases of {shown.title} as a table"), tag("div", class_="scroll"))
    return tag(
        "figure",
        tag("figcaption", tag("strong", shown.title), f" · {units.seconds(metrics.makespan_s)}", _marks(_badge(shown))),
        canvas,
        tag("p", class_="readout", role="status", data_readout=number),
        tag("div", table, data_phases=number),
    )


def _badge(shown: Shown) -> Markup | None:
    return tag("span", EMULATED, class_="badge") if shown.run.header.emulated_gpus else None


def _marks(*badges: Markup | None) -> Markup:
    """Badges after a text, with a space before each so that a narrow page can break there."""
    return join(part for badge in badges if badge is not None for part in (" ", badge))


def _over_time(shown: list[Shown]) -> Markup:
    kinds = [k for k in ("gpu", "cpu") if any(s.metrics.kinds[k].capacity_s > 0 for s in shown)]
    if not kinds:
        return tag("section", tag("h2", "Utilisation and wastage over time"), tag("p", "No capacity is in the logs."))
    entries = [
        ("a-useful", "useful work"),
        ("a-wasted", "wasted: idle, or held and not used, while work waits for it"),
        ("a-held", "held"),
        ("a-capacity", "capacity"),
    ]
    legend = tag("ul", *(tag("li", tag("span", class_=f"swatch {c}"), t) for c, t in entries), class_="legend")
    figures = [_flow(number, s, kind) for kind in kinds for number, s in enumerate(shown)]
    return tag("section", tag("h2", "Utilisation and wastage over time"), legend, *figures)


def _flow(number: int, shown: Shown, kind: str) -> Markup:
    figures = shown.metrics.kinds[kind]
    useful, wasted = units.share(figures.utilisation_useful), units.share(figures.effective.by_volume)
    label = f"{kind.upper()}s of {shown.title} over time: on average {useful} useful, {wasted} wasted."
    caption = tag(
        "figcaption",
        tag("strong", f"{kind.upper()}s, {shown.title}"),
        f" · {useful} useful, {wasted} wasted",
        _marks(_badge(shown) if kind == "gpu" else None),
    )
    canvas = tag("canvas", role="img", aria_label=label, data_flow=f"{number} {kind}")
    return tag("figure", caption, canvas)


# --- tables -----------------------------------------------------------------------------------------------------------


def _table(caption: str, heads: list[str], rows: list[Row]) -> Markup:
    """A table whose first column names the row; it scrolls inside itself when it is too wide."""
    head = tag("tr", tag("td"), *(tag("th", text, scope="col") for text in heads))
    body = [_row(row, len(heads)) for row in rows]
    table = tag("table", tag("caption", caption, class_="unseen"), tag("thead", head), tag("tbody", *body))
    return tag("div", table, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _row(row: Row, columns: int) -> Markup:
    if not row.values:
        return tag("tr", tag("th", row.name, colspan=columns + 1, scope="rowgroup"), class_="group")
    return tag("tr", tag("th", row.name, scope="row"), *(tag("td", value) for value in row.values))


def _metrics(shown: list[Shown]) -> Markup:
    heads = [s.title for s in shown]
    return tag("section", tag("h2", "All figures"), _table("All figures, by run", heads, table_rows(shown)))


def _devices(shown: list[Shown]) -> Markup | None:
    rows: list[Row] = []
    for s in shown:
        rows.append(Row(s.title))
        for d in s.metrics.devices:
            values = (units.number(d.phases), units.share(d.utilisation_nominal), units.share(d.utilisation_useful))
            rows.append(Row(device_name(d, 40), values))
    if len(rows) == len(shown):
        return None
    table = _table("Devices, by run", ["Phases", "Held", "Useful"], rows)
    return tag("section", tag("h2", "Devices"), table)


def _tenants(shown: list[Shown]) -> Markup | None:
    """GPU time per tenant, where any workload names one."""
    rows: list[Row] = []
    for s in shown:
        rows.append(Row(s.title))
        for name, t in s.metrics.tenants.items():
            held, used = units.amount(t.gpu_held_s, "GPU·s"), units.amount(t.gpu_used_s, "GPU·s")
            rows.append(Row(units.short(name) or "(no tenant)", (units.number(t.workloads), held, used)))
    if not any(name for s in shown for name in s.metrics.tenants):
        return None
    table = _table("GPU time by tenant", ["Workloads", "Held", "Useful"], rows)
    return tag("section", tag("h2", "GPU time by tenant"), table)


TERMS = {
    "Wasted (effective, by volume)": "The share of all GPU time in which a GPU was idle although ready work waited for "
    "one. A GPU that is held while its holder starts, loads or works on the CPU counts as idle.",
    "Nominal": "The same, with every held GPU counted as busy.",
    "By time": "The share of the run in which anything was idle while anything waited.",
    "Useful": "Held, in a GPU phase, and not in a cold start.",
    "Cold start": "A phase that started a process, imported modules or loaded a model while it held its resources.",
    "Preload": "The same, done before the phase needs it and without holding a GPU; it costs CPU time and memory.",
    "Makespan": "From the first submission of a task to the last end. What comes before, as the framework's start, is "
    "in no run.",
    "Job time": "The same of one workload.",
    "Pairs of runs": "One run of each way. A single pair is a claim only where the makespans differ by more than a "
    "second and by more than the noise: a tenth, or twice the typical difference between the times of the same CPU "
    "tasks in the two runs. Several pairs are one where the 95 % interval of their ratio excludes 1.",
    "Emulated GPUs": "A GPU phase was a short real computation, then a wait to its stated length, on a logical device.",
}


def _definitions() -> Markup:
    pairs = join(join([tag("dt", term), tag("dd", text)]) for term, text in TERMS.items())
    return tag("section", tag("details", tag("summary", "What the words mean"), tag("dl", pairs)))
