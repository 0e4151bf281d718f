"""Image classification on the digits that ship with scikit-learn, as an Airflow user writes it.

                ┌─ train 0 ─┐
                ├─ train 1 ─┤
load ─ preprocess           evaluate ─ report
                ├─ train 2 ─┤
                └─ train 3 ─┘
"""

from airflow.sdk import DAG, task

from egs_airflow.demo import work
from egs_airflow.demo.times import TRAININGS

FOLDER, PIPELINE = "{{ dag_run.conf['folder'] }}", "{{ dag_run.conf['pipeline'] }}"

with DAG("digits", schedule=None):
    images = task(work.preprocess)(task(work.load)(FOLDER, PIPELINE))
    train = task(pool="gpu")(work.train)
    trained = [train.override(task_id=f"train_{number}")(images, number) for number in range(TRAININGS)]
    scores = task(pool="gpu")(work.evaluate)(images, trained)
    task(work.report)(FOLDER, PIPELINE, scores)
