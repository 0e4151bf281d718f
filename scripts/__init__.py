"""Programs of the repository itself: set-up, checks, distributions, documentation. None is part of a distribution."""
