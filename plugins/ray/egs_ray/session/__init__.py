"""`egs_ray.run`: one engine for all runs of a driver process, and what carries its decisions out on Ray."""
