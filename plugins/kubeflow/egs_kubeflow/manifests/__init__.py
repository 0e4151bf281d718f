"""What a site has to have in its cluster, and what a controller would preload, as files for a GitOps repository."""
