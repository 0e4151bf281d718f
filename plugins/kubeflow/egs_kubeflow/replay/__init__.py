"""`egs replay --on kubeflow`: workload files as a real pipeline on the local runner. See `run`."""
