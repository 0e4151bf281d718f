"""What tasks tell of themselves while they run: a listener that leaves a line for each, and what reads these lines."""
