"""What Airflow asks of a provider (entry point `apache_airflow_provider`): the section `[egs]` and `airflow egs …`.

No plugin is named here: those of a provider load only where `[core] lazy_discover_providers` is off, and one that is
named twice is refused. Ours has an entry point of its own.
"""

from __future__ import annotations

from typing import Any

from egs_airflow import __version__
from egs_airflow.options import OPTIONS

DISTRIBUTION = "airflow-provider-egs"


def get_provider_info() -> dict[str, Any]:
    """See `airflow/provider_info.schema.json`."""
    return {
        "package-name": DISTRIBUTION,
        "name": "EGS",
        "description": "Makes Airflow stop wasting GPUs: what others wait for runs first.",
        "versions": [__version__],
        "cli": ["egs_airflow.cli.get_cli_commands"],
        "config": {"egs": {"description": "EGS, see `airflow egs doctor`.", "options": _options()}},
    }


def _options() -> dict[str, dict[str, Any]]:
    return {
        name: {
            "description": option.help,
            "version_added": "0.1.0",
            "type": "string",
            "example": option.example,
            "default": option.default,
        }
        for name, option in OPTIONS.items()
    }
