"""A gang's commands find each other: a real server, real commands that meet by a real socket."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from tests.unit.server.real_site import PATIENCE_S, RealSite, wait_for

SIZE = 3
MEET = """
import json, os, pathlib, socket, sys, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

def told(connection):
    text = b""
    while not text.endswith(b"\\n"):
        text += connection.recv(4096)
    return json.loads(text)

def tell(connection, what):
    connection.sendall(json.dumps(what).encode() + b"\\n")

own = {name: value for name, value in os.environ.items() if name.startswith(("EGS_GANG", "MASTER", "CUDA"))}
if rank == 0:
    with socket.create_server(place) as server:
        others = [server.accept()[0] for _ in range(size - 1)]
    met = dict([(rank, own), *[told(one) for one in others]])
    for one in others:
        tell(one, met)
else:
    while True:  # rank 0 may not listen yet
        try:
            connection = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    tell(connection, (rank, own))
    met = told(connection)
(pathlib.Path(sys.argv[1]) / str(rank)).write_text(json.dumps(met))
"""


def test_the_members_of_a_gang_meet(tmp_path: Path) -> None:
    """Three of an array, each with a GPU of its own: with `--torch-env` and nothing but their environment all come to
    the one with rank 0, and hear of all. The port is the one that its user has set. `egs ps` names the same ranks."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    site, notes = RealSite(tmp_path / "site", gpus=SIZE), tmp_path / "notes"
    notes.mkdir()
    try:
        site.start()
        options = ("--gpus", "1", "--array", str(SIZE), "--gang", "meet", "--torch-env")
        gang = site.run(*options, "--", sys.executable, "-c", MEET, str(notes), MASTER_PORT=port)
        assert gang.wait(PATIENCE_S) == 0, gang.communicate()[1]
        found = [json.loads((notes / str(rank)).read_text()) for rank in range(SIZE)]
        assert found[0] == found[1] == found[2]
        met = found[0]
        assert sorted(met) == ["0", "1", "2"]
        hosts = {one["EGS_GANG_HOSTS"] for one in met.values()}
        assert hosts == {",".join([site.client.runs().devices[0].host] * SIZE)}
        assert {(rank, one["EGS_GANG_RANK"], one["EGS_GANG_SIZE"]) for rank, one in met.items()} == {
            (str(rank), str(rank), str(SIZE)) for rank in range(SIZE)
        }
        assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in met.values()} == {("127.0.0.1", port)}
        assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in met.values()) == ["0", "1", "2"]
        wait_for(lambda: not site.open(), "all have ended")
        ended = site.client.runs(with_ended=True).runs
        assert {run.gang.rank for run in ended if run.gang} == {0, 1, 2}
    finally:
        site.close()
