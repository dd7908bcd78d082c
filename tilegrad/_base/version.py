"""The version, in one place: packaging, records, libraries and ``tilegrad --version`` read it here."""

__version__ = "0.1.0"
