"""The browser of the pages' tests."""

from tests.reports.conftest import browser

__all__ = ["browser"]
