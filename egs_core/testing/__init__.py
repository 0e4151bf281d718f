"""What the tests and benchmarks of the core and of the adapters share."""
