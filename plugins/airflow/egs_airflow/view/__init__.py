"""Pages in Airflow's own UI: the plan of a DAG run, why each of its tasks waits, and what was wasted."""

OUTER = "egs_airflow.outer"
"""Where the scope of a page's request has Airflow's own application."""
