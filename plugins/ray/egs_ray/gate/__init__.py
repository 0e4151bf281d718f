"""Mode `on` for unmodified scripts: in which order the GPU tasks that they submit reach Ray."""
