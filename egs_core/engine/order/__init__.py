"""Who is next: the ready phases in order."""
