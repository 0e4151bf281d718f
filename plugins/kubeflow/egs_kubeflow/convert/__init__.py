"""Compiled pipelines as workload graphs: PipelineSpec files and live `@dsl.pipeline` objects."""
