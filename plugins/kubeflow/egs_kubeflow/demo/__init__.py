"""The demo: image classification as a real kfp pipeline, on kfp's own local runner and on EGS's.

`pipelines` has it as users of Kubeflow write it, one file for each way. `work` is what its tasks do, `times` how long.
`run` runs a way and makes its run log, `alone` what kfp's own runner needs for that; `bound` says what no scheduler
can beat.
"""
