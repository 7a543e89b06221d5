"""`rewardfleet lint`: which rows of a data set pay what is wrong, or pay nothing at all.

`probes` writes the answers that are tried on each row, `code` and `texts` those of the services,
`findings` reads what they were paid, and `page` shows it. The services score them.
"""
