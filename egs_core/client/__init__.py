"""The client of a site server: what `egs run`, `ps`, `queue`, `why`, `abort`, `pause`, `resume` use (decision 57).

messages    what client and server tell each other: protocol v1
places      where the server of this user is, and the token for it
outlooks    what controllers of clusters tell of their queues, and ask
http        one connection that is kept, over TCP or a Unix socket
processes   which processes belong to a lease, as the kernel tells it
groups      control groups of leases, where there are any
jobs        what was asked for, kept for `egs redo`
detach      the same without a terminal, with a log
arguments   what is written into a command's own arguments: its devices
phases      `with egs.gpu():` in a command that is split
idle        whether a command is idle
terminal    a terminal for a command
supervise   a command under a lease: from the request to its exit code

Needs no extra. It never imports the server.
"""
