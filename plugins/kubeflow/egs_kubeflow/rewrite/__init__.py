"""The same pipeline for one site: placed, labelled, limited. A pure function of pipeline, profile and history."""
