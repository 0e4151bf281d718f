"""A model that is too large for either of two workers: planned by `egs split-model`, run by both, the same output.

    python examples/torch/01_split_model.py        # needs torch

The workers are Ray actors on CPUs, each with the memory of one device of the plan. What they hand each other goes from
process to process; this one only says who is next.
"""

import json
import operator
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ray
import torch

WIDTH, BLOCKS = 256, 6
DEVICES = """
devices:
  - {name: one, memory: 9MiB}
  - {name: two, memory: 9MiB}
link_bytes_s: 1GB
link_latency_s: 1ms
"""


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        return self.norm(x + self.narrow(torch.nn.functional.gelu(self.wide(x))))


class Net(torch.nn.Module):
    """Blocks with two heads: what the last one makes is read twice."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.heads = torch.nn.ModuleList(torch.nn.Linear(WIDTH, size) for size in (10, 3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.cat([head(x) for head in self.heads], dim=-1)


@ray.remote(num_cpus=1)
class Worker:
    """Holds some stages of the model, if they fit into its memory, and runs one when it is told to."""

    def __init__(self, memory, stages):
        self.held = bytes_of(stages.values())
        if self.held > memory:
            raise MemoryError(f"{self.held:,} bytes of weights are more than {memory:,}")
        self.stages = stages

    def about(self):
        return os.getpid(), self.held

    def run(self, stage, *inputs):
        with torch.no_grad():
            made = self.stages[stage](*inputs)
        return made if len(made) > 1 else made[0]


def bytes_of(modules):
    return sum(one.numel() * one.element_size() for module in modules for one in module.state_dict().values())


def plan(program, folder):
    """What `egs split-model` says of the program, on this CPU's times."""
    torch.export.save(program, folder / "model.pt2")
    (folder / "devices.yaml").write_text(DEVICES)
    words = ("split-model", folder / "model.pt2", "--devices", folder / "devices.yaml", "--measure", "3", "--json")
    done = subprocess.run([sys.executable, "-m", "egs_core.cli.app", *map(str, words)], capture_output=True, check=True)
    return json.loads(done.stdout)


def stages_of(model, assignment):
    """Of each operator its level, which rises with each change of the device, and its device. A part of a result is
    where the result is."""
    found = {}
    for node in model.graph.nodes:
        before = [one for one in node.all_input_nodes if one in found]
        if node.op != "call_function":
            continue
        device = found[before[0]][1] if node.target is operator.getitem else assignment[node.name]
        found[node] = max((found[one][0] + (found[one][1] != device) for one in before), default=0), device
    return found


def cut(model, stage_of):
    """Each stage as a module with its own weights, what it reads, and what it hands on; in an order in which they can
    run."""
    parts = {}
    for stage in sorted(set(stage_of.values())):
        own = [node for node in model.graph.nodes if stage_of.get(node) == stage]
        reads = dict.fromkeys(
            one for node in own for one in node.all_input_nodes if one.op != "get_attr" and stage_of.get(one) != stage
        )
        made = [node for node in own if any(stage_of.get(user) != stage for user in node.users)]
        graph = torch.fx.Graph()
        copies = {one: graph.placeholder(one.name) for one in reads}
        for node in own:
            for weight in node.all_input_nodes:
                if weight.op == "get_attr" and weight not in copies:
                    copies[weight] = graph.node_copy(weight)
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in made))
        parts[stage] = torch.fx.GraphModule(model, graph), list(reads), made
    return parts


def request(model, parts, workers, inputs):
    """One request through all stages: each begins when what it reads is there, wherever that was made."""
    values = dict(zip((node for node in model.graph.nodes if node.op == "placeholder"), inputs, strict=True))
    for stage, (_, reads, made) in parts.items():
        told = workers[stage[1]].run.options(num_returns=len(made)).remote(stage, *(values[one] for one in reads))
        values |= zip(made, [told] if len(made) == 1 else told, strict=True)
    (output,) = [node for node in model.graph.nodes if node.op == "output"]
    return [ray.get(values[node]) for node in output.all_input_nodes]


torch.manual_seed(0)
net, example = Net().eval(), (torch.rand(16, WIDTH),)
program = torch.export.export(net, example)
model = program.module()
with tempfile.TemporaryDirectory() as folder:
    planned = plan(program, Path(folder))
memory = {device["name"]: device["memory"] for device in planned["devices"]}
parts = cut(model, stages_of(model, planned["assignment"]))

ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
workers = {
    name: Worker.remote(memory[name], {stage: part[0] for stage, part in parts.items() if stage[1] == name})
    for name in memory
}
processes, held = zip(*ray.get([worker.about.remote() for worker in workers.values()]), strict=True)
print(f"{bytes_of([net]) / 2**20:.1f} MiB of weights, and workers with {' and '.join(map(str, memory.values()))} bytes")
print("it fits one of them:", bytes_of([net]) <= max(memory.values()))
print("both hold a part:", all(held), "- in processes of their own:", len({*processes, os.getpid()}) == 3)

inputs = (torch.rand(16, WIDTH),)
with torch.no_grad():
    whole = net(*inputs)
(split,) = request(model, parts, workers, inputs)
print("the same output:", torch.allclose(whole, split, rtol=1e-5, atol=1e-6))

took = []
for _ in range(20):
    begun = time.perf_counter()
    request(model, parts, workers, inputs)
    took.append(time.perf_counter() - begun)
print(f"planned {planned['latency_s'] * 1e3:.1f} ms, took {sorted(took)[10] * 1e3:.1f} ms", file=sys.stderr)
