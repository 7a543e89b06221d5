"""Checker programs: they decide whether an output is right, for problems with many valid outputs.

A checker runs in a jail like any program, after the program that it judges has ended: one process
per output, which can read the test's input, the output and the expected output. C++ is compiled to
a shared library, which a Python program loads and calls, as no other executable can be run in a
jail.
"""
