"""From the runs that a site server keeps to spans: a run is a trace, of its wait and of its command; what ran in a GPU
request is below that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egs_core.client.messages import RunView
from egs_core.trace.span import Span, span_id, stated, trace_id


def spans_of_runs(runs: Iterable[RunView], now: float) -> Iterator[Span]:
    """Until now where it goes on. now: second since 1970."""
    known = {run.id: run for run in runs}
    for run in known.values():
        if not run.framework:  # tasks of frameworks' drivers are in their own run logs
            yield from _spans(run, known, now)


def _spans(run: RunView, known: dict[str, RunView], now: float) -> Iterator[Span]:
    outer = run.inside if run.inside in known else ""
    trace, own = trace_id(run.site, outer or run.id), span_id(run.site, run.id)
    end_s = now if run.ended_at is None else run.ended_at
    attributes = {
        "egs.run": run.id,
        "egs.state": run.state,
        "egs.outcome": run.outcome,
        "egs.exit_code": run.exit_code,
        "egs.queue": run.queue,
        "egs.team": run.team,
        "egs.tenant": run.user,
        "egs.gpus": run.gpus,
        "egs.cpus": run.cpus,
        "egs.priority": run.priority,
        "egs.evictions": run.evictions or None,
        "egs.gang": run.gang.name if run.gang else "",
        "host.name": run.host,
    }
    bad = run.outcome if run.outcome not in ("", "succeeded") else None
    error = f"{bad}: {run.reason}" if bad and run.reason else bad
    parent = span_id(run.site, outer) if outer else ""
    yield Span(trace, own, parent, run.name, run.submitted_at, end_s, stated(attributes), error=error)
    started_s = end_s if run.started_at is None else run.started_at
    wait, command = (span_id(run.site, run.id, name) for name in ("wait", "command"))
    yield Span(trace, wait, own, "wait", run.submitted_at, max(run.submitted_at, started_s))
    if run.started_at is not None:
        yield Span(trace, command, own, "command", started_s, max(started_s, end_s), error=error)
