"""The report of a training run as one HTML page: what was recorded, tables, plots."""

from glt_lightning.lightning.report.html import run_html
from glt_lightning.lightning.report.record import EpochRecord, RunRecord

__all__ = ["EpochRecord", "RunRecord", "run_html"]
