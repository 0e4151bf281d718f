"""Run logs as one self-contained HTML page: what was wasted before, what is wasted after, and where."""
