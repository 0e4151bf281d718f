"""What is loaded before a task needs it."""
