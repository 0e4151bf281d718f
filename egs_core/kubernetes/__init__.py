"""What EGS does in a Kubernetes cluster: the order in which pods with its labels may start (decision 75).

names        labels, annotations and the gate, as pods carry them
objects      fields of what the API server has; pods: pods and nodes as values
stated       the limits that they state; faults: what they state and nobody can read
places       on which nodes a pod may run; makers: what made a pod, and which start together
devices      what drivers offer and claims ask (DRA); selectors: which devices a claim means; room: what a node has
workflows    Argo's Workflows as values; paths: how long the run of a pod goes on from its start
learned      what pods of earlier runs took, and what follows from it; steps: what nodes of Argo are called in every run
seen         what a list of pods means for an engine that was told of an earlier one
gates        which gates are opened now, and which are overdue; stuck: what was opened and gets no node
limits       when pods end at the latest; retries: whether what made a pod makes it again
telling      what is written into a pod that waits; standing: where a pod stands, as is listed of it
priorities   the order of what waits in Kueue, as priorities of its Workloads; bookings: what these have of quotas
clusters     in which of several clusters Workloads of MultiKueue may run
foreseen     when and where what waits will probably start; coming: the next steps of runs of Argo
images       what pods are made of, and nodes have
preloads     which pods load images ahead, made or removed; placeholders: which stand for a node that is not there yet
tiers        a limit of GPUs as a claim with tiers; gpu_free: a GPU that a task says it does not need
admission    what the webhook writes into a pod that is about to be made
                                                            (all of these are pure: time is an argument)
session      a site (`egs_core.site`) that is told of the pods of a cluster
joining      the same at the site server that `EGS_URL` names, and what becomes of it without
cluster      the API server: list, watch, patch; mirror: what was listed, kept up to date by watches; clock: its clock
claiming     devices and claims, put into nodes and pods; grouping: gangs, put into pods
leader       one of several controllers leads, by a Lease
settings     what a controller is told when it starts
controller   the loop; kueue: its part for what waits in Kueue; opening: what both write; writing: a few at a time
dispatching  the same for MultiKueue, by a site server that is told and asked beside
overdue      the second process, which opens what is overdue
webhook      the admission webhook, in the controller's process; certificate: its own
learning     what was learned, kept in a ConfigMap; explaining: why pods wait, written into them
preempting   what is deleted so that another may start; preloading, placeholding: what makes these and removes them
steering     ending a run or a pod, with the rights of whoever asks; pausing: pausing it
manifests    what all of that needs in the cluster; chart: the same for Helm; guard: what it may not do there
leaving      how it goes again, and leaving_tried what would go; profiled: what a profile says and the cluster has not

Nothing else of the core imports this room but the command line.
"""
