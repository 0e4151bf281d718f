"""The live dashboard: a process of its own beside the site server (decision 83).

    browser ── /dashboard ──► egs serve ── Unix socket ──► this process ── the server's API, with the viewer's token ─┐
                                  ▲                                                                                   │
                                  └───────────────────────────────────────────────────────────────────────────────────┘

It is a client: what it shows and does is what the server tells and allows whoever is logged in. It has no token of its
own and keeps nothing on disk.

sessions   who is logged in
asking     questions to the server, each with somebody's token
snapshot   what there is to see, as rows of text, and what has changed of it; pure
source     what those who see the same are told: each question once
feed       one snapshot a second for all viewers who see the same
measured   what the GPUs of this host do
pages      the login page, the page whose rows page.js fills in, and frames whose parts come as trees (view.js)
app        the routes

Pages of parts (decision 127): mirror has the runs of a site, and which belong together; views says of what a page is
made, site_workloads, driver_tasks and usage make it, tree has it as plain values. What workloads and parts have, pages
of run logs have, too.

And run logs in a browser, for one person, without a site (decision 111): log_pages makes the pages, log_serving is the
server of `egs dashboard`.
"""
