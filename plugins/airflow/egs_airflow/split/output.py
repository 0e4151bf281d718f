"""What a split task gives: Airflow's reference to a task's value takes that task for its first one too.

Part of `compat`: private Airflow API.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

log = logging.getLogger("egs_airflow")


def output_of_split(first: Any, last: Any) -> Any:
    """The value of the task that `last` refers to; what is put before it comes before the task of `first`.

    `start >> train(x)` must wait with the first phase, not with the last one only. Probe: the class is there and can be
    extended. Fallback: Airflow's own reference, with one warning.
    """
    try:
        return _split_output()(last.operator, first=first.operator)
    except Exception as error:  # the class was never public
        says = "egs: `start >> split_task(x)` makes only the last phase wait; give `start` as an argument: %s: %s"
        log.warning(says, type(error).__name__, error)
        return last


@cache
def _split_output() -> Any:
    import attrs
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    @attrs.define
    class SplitOutput(PlainXComArg):  # type: ignore[misc]  # Airflow's types are not read, see pyproject.toml
        """Airflow's reference to the value of one task, with another task to start with."""

        first: Any = attrs.field(default=None, eq=False, repr=False)

        @property
        def roots(self) -> list[Any]:
            """What waits for whatever is put before."""
            return [self.first]

        def set_upstream(self, task_or_task_list: Any, edge_modifier: Any = None) -> None:
            """Put tasks before the first one."""
            self.first.set_upstream(task_or_task_list, edge_modifier)

    return SplitOutput
