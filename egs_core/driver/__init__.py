"""What drives the engine in real time: timers, what is decided carried out, a journal's entries, the run log of it."""
