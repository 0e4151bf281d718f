"""The scenarios that every adapter must pass on its real framework.

    pipelines as data ─► bench: the adapter's test binding ─► the real framework ─► marks, run log, what the user sees
         ▲                                                                                    │
         └───────────────────────────── scenarios: check(bench) ◄─────────────────────────────┘

`pipeline.py` describes small pipelines, `body.py` is what their tasks do inside workers: append *marks* (when, where,
with which devices) to a file. `bench.py` is the protocol that a binding implements. The scenarios (`graphs.py`,
`ordering.py`, `phases.py`, `control.py`, `faults.py`) are plain functions that raise AssertionError; `suite.py` lists
them with the capability that each needs. They check order and overlap of facts, never how long something took.

    from egs_core.testing.conformance.suite import SCENARIOS, reason_to_skip

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
    def test_conformance(bench, scenario):
        if reason := reason_to_skip(scenario, bench):
            pytest.skip(reason)
        scenario.check(bench)

This package imports nothing: `body.py` runs in workers.
"""
