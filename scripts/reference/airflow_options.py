"""The page of Airflow's section `[egs]`, from the provider's table of its options."""

from __future__ import annotations

from egs_airflow.options import OPTIONS, TAKES
from scripts.reference.markdown import MissingText, code, table

INTRO = """# Options of Airflow: `[egs]`

In `airflow.cfg`, or as an environment variable `EGS_<OPTION>`, which wins; Airflow's own `AIRFLOW__EGS__<OPTION>` works
as well. A process reads its options when it starts. `airflow egs doctor` checks each one that is stated: what it means,
and whether files and folders can be used by whoever asks. A value that means nothing is one warning, and the default
holds. The user's data folder is `$XDG_DATA_HOME/egs`, by default `~/.local/share/egs`.
"""


def airflow_options_page() -> str:
    """Every option of the section with its default, what it takes, an example and its meaning."""
    rows = []
    for option in OPTIONS.values():
        if not option.help:
            raise MissingText(f"[egs] {option.name} has no description")
        default = option.without or code(option.default)
        rows.append((code(option.name), default, TAKES[option.kind], code(option.example), option.help))
    return f"{INTRO}\n{table(('option', 'default', 'takes', 'example', 'meaning'), rows)}"
