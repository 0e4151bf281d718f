"""Traces of what ran, computed afterwards: a span for each phase, linked along the edges of the graph.

run logs ──────► spans  ─┐
                         ├─► otlp (OpenTelemetry's JSON) ─► a file, or a collector over HTTP
a site's runs ─► served ─┘
"""
