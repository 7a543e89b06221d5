"""Scoring of whole data sets: reading rows, scoring them, and keeping the scores."""
