"""The reference pages of the documentation, generated from the code that they describe.

`PAGES` has one function a page, which returns Markdown. A page lists every key, option or hint that its code knows, and
raises `MissingText` for one that has no description: `make docs` and a test then fail with its name.
"""

from __future__ import annotations

from collections.abc import Callable

from scripts.reference.airflow_options import airflow_options_page
from scripts.reference.commands import commands_page
from scripts.reference.environment import environment_page
from scripts.reference.files import (
    cluster_file_page,
    devices_file_page,
    oidc_file_page,
    prices_file_page,
    profile_page,
    queues_file_page,
    rules_file_page,
)
from scripts.reference.hints import hints_page
from scripts.reference.modules import modules_page
from scripts.reference.ray_options import ray_options_page

PAGES: dict[str, Callable[[], str]] = {
    "reference/hints.md": hints_page,
    "reference/commands.md": commands_page,
    "reference/queues-file.md": queues_file_page,
    "reference/cluster-file.md": cluster_file_page,
    "reference/devices-file.md": devices_file_page,
    "reference/prices-file.md": prices_file_page,
    "reference/rules-file.md": rules_file_page,
    "reference/oidc-file.md": oidc_file_page,
    "reference/kubeflow-profile.md": profile_page,
    "reference/ray-options.md": ray_options_page,
    "reference/airflow-options.md": airflow_options_page,
    "reference/environment.md": environment_page,
    "reference/modules.md": modules_page,
}
"""Path in the site -> what writes it."""
