"""axe in a page: what of it people with a keyboard or a screen reader, or weak eyes, cannot use."""

from __future__ import annotations

import json
from importlib import resources

from tests.unit.report.chromium import Page

GRAVE = ("serious", "critical")


def grave(page: Page) -> list[str]:
    """What axe finds in the page that is open, of all its rules: the rule, its words, and the elements, a line each."""
    if page.evaluate("typeof axe") != "object":
        page.evaluate((resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8") + ";0")
    found = page.evaluate(f"axe.run({{resultTypes: ['violations']}}).then(r => r.violations.filter({_IS_GRAVE}))")
    assert page.evaluate("axe.version"), "axe is not in the page"
    return [f"{one['id']}: {one['help']}: {[node['html'] for node in one['nodes']][:5]}" for one in found]


_IS_GRAVE = f"one => {json.dumps(GRAVE)}.includes(one.impact)"
