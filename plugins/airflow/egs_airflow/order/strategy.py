"""How Airflow is given the weights: a hook for DAGs chosen in the configuration, a weight rule for those who write it.

The rule is stored with a DAG that names it, and Airflow cannot read such a DAG once EGS is uninstalled. The hook leaves
nothing behind, so it is what mode on uses.
"""

from __future__ import annotations

from typing import Any

from airflow.policies import hookimpl
from airflow.task.priority_strategy import PriorityWeightStrategy, validate_and_load_priority_weight_strategy

from egs_airflow import compat, config
from egs_airflow.order.weights import weight_of


class EgsPriorityWeightStrategy(PriorityWeightStrategy):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
    """`weight_rule=EgsPriorityWeightStrategy()`: by longest remaining path; Airflow's own where EGS does not order."""

    def get_weight(self, ti: Any) -> int:
        """The weight of a task instance that is being made. Never raises: that would stop the scheduler."""
        found = _weight_or_none(ti)
        return int(validate_and_load_priority_weight_strategy("downstream").get_weight(ti)) if found is None else found


class OrderPolicy:
    """The policy that gives task instances of chosen DAGs their weight while they are made, retried or cleared."""

    @staticmethod
    @hookimpl(tryfirst=True)  # type: ignore[untyped-decorator]  # Airflow's types are not read, see pyproject.toml
    def task_instance_mutation_hook(task_instance: Any) -> None:
        """Set the weight, before a hook of the site's own, which so has the last word; what fails leaves Airflow's."""
        found = _weight_or_none(task_instance)
        if found is not None:
            task_instance.priority_weight = found


def priority_weight_strategies() -> list[type[PriorityWeightStrategy]]:
    """What the plugin registers, wherever a DAG may name it; in mode on the hook comes with it."""
    if config.settings().mode == "on" and compat.available("mutation_hook"):
        compat.install_policy(OrderPolicy)
    return [EgsPriorityWeightStrategy]


def _weight_or_none(ti: Any) -> int | None:
    try:
        task = getattr(ti, "task", None)
        return None if task is None else weight_of(task)
    except BaseException as error:
        if config.ends_process(error):
            raise
        config.warn(f"Airflow's own weights hold: {type(error).__name__}: {error}")
        return None
