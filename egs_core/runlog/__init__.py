"""One stream of records per run, simulated or real, with or without EGS; every metric and chart comes from it."""
