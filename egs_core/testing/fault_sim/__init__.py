"""Fault simulation: the shipped engine, driver and journal's entries on a simulated store, clock, network and cluster.

    plan    what a seed stands for          shell    the driver's process, and what an adapter does around it
    store   all of an entry or nothing      worker   a machine that outlives the driver
    wire    messages, and their network     ledger   what really happened
    world   the loop                        claims   what must be true; add yours there

`python -m egs_core.testing.fault_sim --seed 17` replays one seed with its trace; `--seeds 0:2000` runs many.
"""

from egs_core.testing.fault_sim.runner import Result, run_seed, run_seeds

__all__ = ["Result", "run_seed", "run_seeds"]
