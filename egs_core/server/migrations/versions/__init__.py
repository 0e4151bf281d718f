"""One file a revision; what they do never changes once it is released."""
