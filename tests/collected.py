"""A test file that cannot be collected fails the run, as it does without workers.

With workers pytest ends as where tests failed, and who runs once more what failed knows no test of that file.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    errors = reporter.stats.get("error", []) if reporter else []
    if any(isinstance(report, pytest.CollectReport) for report in errors):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
