"""Pages in Airflow's own UI: the plan of a DAG run, why each of its tasks waits, and what was wasted."""
