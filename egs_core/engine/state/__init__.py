"""What is known, as columns and records, and every change of it."""
