"""A folder of its own for the one file that Python is to find as `sitecustomize` in a command of `egs run --preload`:
see `egs_core.client.loading`."""
