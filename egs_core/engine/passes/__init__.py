"""One step of the engine each: what it takes in, grants, warms, stops."""
