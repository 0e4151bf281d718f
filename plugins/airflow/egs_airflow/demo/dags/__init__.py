"""The pipelines as DAG files, which are copied into the DAG folder of an Airflow."""
