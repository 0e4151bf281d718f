"""The pipeline as an expert tunes it by hand without EGS: each training in three tasks, of which one holds a GPU."""

from airflow.sdk import DAG, task

from egs_airflow.demo import work
from egs_airflow.demo.times import TRAININGS

FOLDER, PIPELINE = "{{ dag_run.conf['folder'] }}", "{{ dag_run.conf['pipeline'] }}"

with DAG("digits", schedule=None):
    images = task(work.preprocess)(task(work.load)(FOLDER, PIPELINE))
    decode, fit, write = task(work.decode), task(pool="gpu")(work.fit), task(work.write)
    trained = []
    for number in range(TRAININGS):
        decoded = decode.override(task_id=f"decode_{number}")(images, number)
        fitted = fit.override(task_id=f"fit_{number}")(decoded)
        trained.append(write.override(task_id=f"write_{number}")(fitted))
    scores = task(pool="gpu")(work.evaluate)(images, trained)
    task(work.report)(FOLDER, PIPELINE, scores)
