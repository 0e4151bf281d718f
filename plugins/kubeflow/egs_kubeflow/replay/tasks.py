"""The components of a replay's pipeline: kfp compiles them from their source."""

# kfp reads the annotations of components: they must not be text, so no `from __future__ import annotations`


def play(phases: list, load_s: float):  # type: ignore[no-untyped-def, type-arg]  # kfp takes `-> None` for an output
    """A task of a workload file."""
    from egs_kubeflow.replay.marking import play

    play(phases, load_s)


def arrive(began: float, due_s: float):  # type: ignore[no-untyped-def]  # as above
    """Wait until a workload is due."""
    from egs_kubeflow.replay.marking import wait_until

    wait_until(began + due_s)
