"""DAGs as workload graphs: DAG objects, stored (serialized) DAGs and the files of both."""
