"""The live dashboard: a process of its own beside the site server (decision 83).

    browser ── /dashboard ──► egs serve ── Unix socket ──► this process ── the server's API, with the viewer's token ─┐
                                  ▲                                                                                   │
                                  └───────────────────────────────────────────────────────────────────────────────────┘

It is a client: what it shows and does is what the server tells and allows whoever is logged in. It has no token of its
own and keeps nothing on disk.

sessions   who is logged in
asking     questions to the server, each with somebody's token
snapshot   what there is to see, as rows of text, and what has changed of it; pure
feed       one snapshot a second for all viewers who see the same
measured   what the GPUs of this host do
pages      the login page, and the page whose rows page.js fills in
app        the routes

And run logs in a browser, for one person, without a site (decision 111): log_pages makes the pages, log_serving is the
server of `egs dashboard`.
"""
