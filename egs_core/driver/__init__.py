"""What drives the engine in real time: journal, timers, acknowledgements; and the run log of what it did."""
