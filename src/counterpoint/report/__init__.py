"""One HTML page that shows what a similarity graph changed."""

from counterpoint.report.page import write_report

__all__ = ["write_report"]
