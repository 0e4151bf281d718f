"""Which task runs first: weights from learned durations, and the pool of a task that says it needs GPUs."""
