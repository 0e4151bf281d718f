"""Reaching what runs on a Ray cluster from another process: the controller, its clients and the driver's side of it."""
