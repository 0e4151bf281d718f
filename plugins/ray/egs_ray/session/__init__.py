"""One site for all graphs of a driver (`egs_ray.run`) and for its script, and what performs its decisions on Ray."""
