"""The demo: six small image-classification pipelines on a real local Ray, run natively and with EGS.

`pipelines` holds the pipelines as a Ray user writes them, once. `variants` runs them in different ways. `marks` notes
in each task what happened when, and `log` turns those notes into a run log. `bound` says what no scheduler can beat.
"""
