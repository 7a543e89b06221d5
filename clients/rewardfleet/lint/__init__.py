"""`rewardfleet lint`: rows of a data set that pay what is wrong, or pay nothing.

`rows` adds to a row the answers that are tried on it, `code` writes programs, and `findings` reads
what they were paid.
"""
