"""The site server: one engine for all who share a host's devices (decision 57). An extra: `egs-core[server]`.

    egs run ── HTTP ─► app ─► writer ─► logic ─► driver's commit barrier ─► engine
                               │  ▲        │
                               │  └ answers, after the commit
                               └─► store: one transaction a batch

runs       a run as the server keeps it, and who asks for something
logic      what requests, time and processes mean; touches no clock, file, network or process
views      what a site tells of its runs
forecast   when what waits should start
store      journal, runs and tokens in a database
writer     the one thread that owns the logic: batches, commits, then answers
devices    what the host offers
access     who is asking: a Unix socket's peer, or a token
app        the protocol over HTTP
serving    sockets, folder, token file: what `egs serve` does
"""
