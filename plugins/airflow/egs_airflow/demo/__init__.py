"""The demo: small image-classification pipelines on a real local Airflow, run natively, tuned by hand, and with EGS.

`dags` holds the pipelines as Airflow users write them, one file for each way. `work` is what their tasks do, `times`
how long, `model` what they load. `run` runs a way and makes its run log; `bound` says what no scheduler can beat.
"""
