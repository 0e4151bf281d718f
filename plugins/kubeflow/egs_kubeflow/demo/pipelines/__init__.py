"""The pipeline, as written, tuned by hand, and with hints: kfp compiles each from the source of its components."""
