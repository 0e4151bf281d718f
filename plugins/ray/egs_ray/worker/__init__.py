"""What runs inside Ray's workers: small, and the standard library before anything else."""
