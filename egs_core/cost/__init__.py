"""What work cost: GPU hours held, used and wasted, and money, by team, pipeline, task and user.

run logs ──┬─► uses ────┐
           │            ├─► ledger (month, prices) ─┐
a site's ──┼─► served ──┘                           ├─► `egs cost`
runs       └─► work ──────► rating (month, prices) ─┘

run logs, histories ──► uses ──► overview ──► `egs audit --overview`
"""
