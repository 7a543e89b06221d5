"""Checker programs: they decide whether an output is right, for problems with many valid outputs.

C++ is compiled to a shared library, which a Python program loads and calls, as no other executable
can be run in a jail.
"""
