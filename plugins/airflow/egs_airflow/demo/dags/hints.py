"""The pipeline with hints for EGS: what has CPU and GPU phases says so. Which pool a GPU is a slot of, EGS knows."""

from airflow.sdk import DAG, task

import egs_core as egs
from egs_airflow.demo import work
from egs_airflow.demo.times import TRAININGS
from egs_airflow.split import split

FOLDER, PIPELINE = "{{ dag_run.conf['folder'] }}", "{{ dag_run.conf['pipeline'] }}"

with DAG("digits", schedule=None):
    images = task(work.preprocess)(task(work.load)(FOLDER, PIPELINE))
    train = split(egs.task(gpus=1)(egs.phases(work.decode, egs.on_gpu(work.fit), work.write, name="train")))
    trained = [train.override(group_id=f"train_{number}")(images, number) for number in range(TRAININGS)]
    scores = task(egs.task(gpus=1)(work.evaluate))(images, trained)
    task(work.report)(FOLDER, PIPELINE, scores)
