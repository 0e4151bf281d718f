"""Workload files on a real local Ray, and from what their tasks noted to a run log."""
