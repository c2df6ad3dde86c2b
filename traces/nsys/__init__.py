"""Nsight Systems exports: the tables of SQLite or Parquet, read into a Trace."""
