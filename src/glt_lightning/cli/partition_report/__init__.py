"""The report on a finished partition: its contents and the expected traffic of training, as text, HTML or JSON."""

from glt_lightning.cli.partition_report.contents import Contents, collect_contents
from glt_lightning.cli.partition_report.options import TrafficOptions
from glt_lightning.cli.partition_report.report import Report, make_report

__all__ = ["Contents", "Report", "TrafficOptions", "collect_contents", "make_report"]
