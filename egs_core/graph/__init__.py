"""The universal workload graph: models at the boundary, columns inside, formats and analysis."""
