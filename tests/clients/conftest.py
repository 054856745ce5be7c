"""The table of clients, behind the tests that made it."""

from __future__ import annotations

import pytest
from tests.clients.report import ROWS, table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if rows := terminalreporter.config.stash.get(ROWS, []):
        terminalreporter.section("clients")
        terminalreporter.write_line(table(rows))
