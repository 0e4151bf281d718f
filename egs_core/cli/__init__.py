"""The command line: `app.py` dispatches and words errors; every command is one module named after it."""
