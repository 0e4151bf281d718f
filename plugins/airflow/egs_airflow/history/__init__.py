"""What Airflow's REST API tells of the past: read, as run log records, and kept in the history of durations."""
