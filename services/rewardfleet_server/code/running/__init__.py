"""Runs of programs: submissions, and the packages that programs can import."""
