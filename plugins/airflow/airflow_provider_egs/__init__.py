"""Nothing but a name; EGS is `egs_airflow`.

Airflow 3.3 derives a module's name from that of the distribution, `airflow-provider-egs`, and looks there for example
DAGs. Without the module it writes an error with a traceback into the log of each task.
"""
