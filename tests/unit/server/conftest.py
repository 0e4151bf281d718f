"""What a failure of a test at a real site server says besides."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.unit.server.real_site import RealSite


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """How its site's processes and runs stood then."""
    report = yield
    if report.failed and call.when == "call":
        for found in getattr(item, "funcargs", {}).values():
            if isinstance(found, RealSite):
                report.sections.append(("site", found.standing()))
    return report
