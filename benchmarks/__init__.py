"""What EGS takes and what it gains, measured: `python -m benchmarks` runs every suite, each module one by itself."""
