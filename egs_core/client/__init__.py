"""The client of a site server: what speaks to it, without any extra (decision 57).

messages    what client and server tell each other: protocol v1
processes   which processes belong to a lease, as the kernel tells it

It never imports the server.
"""
