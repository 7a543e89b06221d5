"""The code service: a program and tests go in, honest verdicts come out."""
