"""Best known configs: the shipped logs, their format and how a config is looked up. Imports only ``_base``."""

from tilegrad.tuning_logs.files import Appender, read, read_all, shipped, write
from tilegrad.tuning_logs.lookup import SOURCES, Hit, Records, distance, fits, no_worse_than_default
from tilegrad.tuning_logs.records import Line, Record, Status, Verdict, canonical, parse
from tilegrad.tuning_logs.tools import Best, Stats, best, merge, prune, stats

__all__ = [
    "SOURCES",
    "Appender",
    "Best",
    "Hit",
    "Line",
    "Record",
    "Records",
    "Stats",
    "Status",
    "Verdict",
    "best",
    "canonical",
    "distance",
    "fits",
    "merge",
    "no_worse_than_default",
    "parse",
    "prune",
    "read",
    "read_all",
    "shipped",
    "stats",
    "write",
]
