"""What Ray's own history tells: read where it is, or received and kept so that it outlives the cluster."""
