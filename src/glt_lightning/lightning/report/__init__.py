"""The report of a training run as one HTML page: what was recorded, tables, plots."""

from glt_lightning.lightning.report.html import EpochRecord, RunRecord, run_html

__all__ = ["EpochRecord", "RunRecord", "run_html"]
