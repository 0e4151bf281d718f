"""The site server: one engine for all who share a host's devices (decision 57). An extra: `egs-core[server]`.

    egs run ── HTTP ─► app ─► writer ─► logic ─► driver's commit barrier ─► engine
                               │  ▲        │
                               │  └ answers, after the commit
                               └─► store: one transaction a batch

runs       a run as the server keeps it
principals who asks for something, and what roles may
logic      what requests, time and processes mean; touches no clock, file, network or process
pools      drivers of frameworks that share a cluster's devices (`egs_core.site.pooled`): what each may, and sees
sharing    their shell (`egs_core.site.sharing`)
views      what a site tells of its runs
forecast   when what waits should start
tally      what has been counted since the start; metrics: what `/metrics` tells of that and of what is now
store      journal, runs and tokens in a database
database   SQLite or PostgreSQL behind it; tables: as they are today; migrations: how older ones become so
writer     the one thread that owns the logic: batches, commits, then answers
leader     which of several servers is active; leader_row: its row in PostgreSQL; standing: where a server stands
devices    what the host offers
access     who is asking: a Unix socket's peer, or a token; the tokens
who        the parameter of a route that names who asks
app        the protocol over HTTP; access_routes: that of tokens and the log; metrics_routes
overview   the whole site for who looks at it all the time; outlines: what has changed of its runs
outlooks   where work of several clusters should end first; outlook_routes: its routes
ahead      tasks of drivers, and what is planned for them; driver_use: what they held
dashboard  the process that shows it to browsers (`egs_core.dashboard`); forwarding: requests for it
bounds     what a request may be: long, of which kind, how often
doors      where it listens over TCP, and TLS
serving    sockets, folder, token file: what `egs serve` does
"""
