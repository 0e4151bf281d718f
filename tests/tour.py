"""The tour: which tests `make test` runs on a real framework, one or a few for each promise. All other tests of the
folders below run with `make test-slow`, those that touch what a version may change also with `make test-versions`.

A name stands for all parameters of its test, unless some stand in brackets.
"""

from __future__ import annotations

FRAMEWORKS = ("tests/conformance/", "tests/scenarios/test_examples.py")
"""Where tests start a framework. What stands here and not in the tour has the marker `rest`."""

AIRFLOW = {
    "test_airflow_observe_mode.py": ("test_observe_changes_nothing", "test_airflow_knows_egs"),
    "test_airflow_history.py": ("test_audit", "test_listener", "test_listener_that_fails", "test_history"),
    "test_order.py": (
        "test_weights_come_from_learned_durations_and_leave_no_trace_in_the_dag",
        "test_gpu_tasks_of_chosen_dags_go_into_the_configured_pool",
        "test_a_successor_gets_the_slot_that_its_predecessor_freed",
    ),
    "test_split.py": ("test_the_example_prints_what_is_recorded[01_split-images-places0]",),
    "test_preload.py": ("test_preloaded_modules_are_there_in_tasks",),
    "test_engine_lease.py": ("test_the_lease_in_airflows_metadata",),
    "test_airflow_conformance.py": ("test_airflow[gang-starts-whole]", "test_airflow[abort-one]"),
}
KUBEFLOW = {
    "test_kfp_conformance.py": tuple(
        f"test_local_runner[{name}]"
        for name in ("convert", "order", "split", "gang-starts-whole", "limits", "abort-one", "fail-open-disk")
    ),
    "test_kfp_component.py": (
        "test_hints_become_resources_limits_and_an_annotation",
        "test_the_text_of_a_component_is_the_same_each_time",
        "test_phases_hold_the_gpu_only_in_theirs",
        "test_a_gpu_block_becomes_a_task_of_its_own",
    ),
    "test_kfp_ends.py": ("test_a_killed_runner_leaves_nothing",),
    "test_kfp_examples.py": (
        "test_the_written_pipeline_is_one_that_kfp_loads_and_places",
        "test_every_example_is_tested",
        "test_an_example_prints_what_is_recorded[02_run]",
        "test_the_profiles_that_users_see_are_profiles",
    ),
    "test_kfp_run.py": (
        *(
            f"test_every_construct_gives_its_result[{name}]"
            for name in ("nested", "tables", "head", "opted", "sharing")
        ),
        "test_an_exit_task_runs_after_a_failure",
        "test_a_task_is_tried_again",
        "test_gpu_slots_are_not_shared",
        "test_the_command_prints_the_result",
        "test_ctrl_c_ends_all_tasks",
    ),
    "test_kfp_wire.py": ("test_local_runner[order]",),
}
RAY = {
    "test_ray_conformance.py": (
        *(
            f"test_egs_ray_run[{name}]"
            for name in ("convert", "order", "split", "preload", "gang-starts-whole", "limits", "abort-one")
        ),
        "test_hook[convert]",
        "test_hook[inversion]",
        "test_hook_with_hints[split]",
    ),
    "test_ray_act_faults.py": ("test_failures_leave_ray_as_it_is",),
    "test_ray_observe.py": ("test_observe_changes_nothing_and_tells_what_happened",),
    "test_ray_preempt.py": ("test_a_preempted_task_goes_on_from_its_checkpoint",),
    "test_ray_replay.py": ("test_what_can_never_run_is_one_line",),
    "test_ray_run.py": (
        "test_values_equal_native",
        "test_errors_are_as_native",
        "test_why_and_timeouts",
        "test_run_log_is_whole_and_history_is_learned",
        "test_nothing_is_left_behind",
    ),
    "test_ray_split.py": ("test_gpu_is_held_in_its_phase_only", "test_gpu_comes_back_when_the_worker_is_killed[fit]"),
}
EXAMPLES = {
    "test_examples.py": (
        "test_the_hook_changes_no_output_and_leaves_a_run_log[on]",
        "test_the_tutorials_commands_read_that_run_log",  # the same run
    )
}

TOUR = {
    f"{folder}/{file}::{name}"
    for folder, files in (
        ("tests/conformance/airflow", AIRFLOW),
        ("tests/conformance/kubeflow", KUBEFLOW),
        ("tests/conformance/ray", RAY),
        ("tests/scenarios", EXAMPLES),
    )
    for file, names in files.items()
    for name in names
}


def is_rest(nodeid: str) -> bool:
    """Whether a test of a framework is no part of the tour."""
    return nodeid.startswith(FRAMEWORKS) and nodeid not in TOUR and nodeid.partition("[")[0] not in TOUR
