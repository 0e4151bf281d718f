"""The site that all drivers of a Ray share where there is no server: in an actor."""
