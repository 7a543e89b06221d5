"""The answers service: mathematics and short answers, compared with references."""
