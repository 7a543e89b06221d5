"""`rewardfleet lint`: rows of a data set that pay what is wrong, or pay nothing.

`code` and `texts` write the answers that are tried on a row, `rows` adds them to it, and `findings`
reads what they were paid.
"""
