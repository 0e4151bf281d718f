"""What a cluster wasted and what EGS would have saved, from its records alone: the framework is not asked again."""
