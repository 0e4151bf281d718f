"""Rules of a site server that look at devices and runs: what is true now, since when, and what is done about it.

readings (NVML, agents, heartbeats) ─► conditions ─► hysteresis ─► steps ─► the book, the log, alerts
                                        what is true   for how long   select, then issue
"""
