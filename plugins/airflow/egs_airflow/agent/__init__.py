"""What acts on running tasks from outside: the agent of a host, abort, and limits. See `loop` and `control`."""
