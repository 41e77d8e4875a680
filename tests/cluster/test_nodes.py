"""Two nodes, which are network namespaces, each with a name, an address and one end of a cable; a real rendezvous."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from .lesson import environ, losses, torchrun, uninterrupted, write_programs
from .namespaces import INSIDE
from .watching import printed, wait_for

IN_THE_MIDDLE = 25  # the run saves every 10 steps
_HOLD = "import signal, socket, sys; socket.sethostname(sys.argv[1]); print(flush=True); signal.pause()"
PROGRAM = ("train.py", "--device", "cpu")
MEET = ("--nnodes", "2", "--nproc-per-node", "2", "--rdzv-id", "run7", "--rdzv-backend", "c10d")


class Node:
    """A network and a host name of its own, which last as long as the process that holds them."""

    def __init__(self, number: int, card: str) -> None:
        self.name, self.address, self.card = f"node{number}", f"10.14.0.{number + 1}", card
        command = ["unshare", "--net", "--uts", sys.executable, "-c", _HOLD, self.name]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.holder.stdout.readline()
        subprocess.run(["ip", "link", "set", card, "netns", str(self.holder.pid)], check=True)
        for settings in (f"address add {self.address}/24 dev {card}", f"link set {card} up", "link set lo up"):
            subprocess.run(self.inside("ip", *settings.split()), check=True)

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", f"--target={self.holder.pid}", "--net", "--uts", *command]

    def start(self, folder, *options: str, **env: str) -> subprocess.Popen:
        with open(folder / "log", "a") as log:
            return subprocess.Popen(
                self.inside(*torchrun(*MEET, *options, *PROGRAM)), cwd=folder, env=env, stdout=log, stderr=log
            )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    assert os.environ.get(INSIDE) == "yes", "this makes network cards: use `make cluster`, with which they go"
    hosts = tmp_path_factory.mktemp("network") / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.14.0.1 node0\n10.14.0.2 node1\n")
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    cable = ["ip", "link", "add", "name", "card0", "type", "veth", "peer", "name", "card1"]
    subprocess.run(cable, check=True)
    nodes = [Node(0, "card0"), Node(1, "card1")]
    yield nodes
    for node in nodes:
        node.holder.kill()
        node.holder.wait()


@pytest.fixture(scope="module")
def wanted(nodes, tmp_path_factory):
    """The losses of four ranks on one node, which nobody stops."""
    command = nodes[0].inside(*torchrun("--standalone", "--nproc-per-node", "4", *PROGRAM))
    return uninterrupted(tmp_path_factory.mktemp("alone") / "run", command)


def ranks_of(agent: subprocess.Popen) -> dict[int, psutil.Process]:
    ranks = [p for p in psutil.Process(agent.pid).children(recursive=True) if "RANK" in p.environ()]
    return {int(rank.environ()["RANK"]): rank for rank in ranks}


def test_a_node_dies_and_comes_back_and_the_losses_are_those_of_the_run_left_alone(nodes, wanted, tmp_path):
    write_programs(tmp_path)
    env = environ(tmp_path, pause=IN_THE_MIDDLE)
    options = ("--max-restarts", "3", "--rdzv-endpoint", "node0:29500")
    agents = [node.start(tmp_path, *options, **env) for node in nodes]
    try:
        wait_for(lambda: f"step {IN_THE_MIDDLE}:" in printed(tmp_path), tmp_path, agents[0])
        on_each = [ranks_of(agent) for agent in agents]
        assert sorted(map(sorted, on_each)) == [[0, 1], [2, 3]]
        assert len({os.readlink(f"/proc/{p.pid}/ns/net") for ranks in on_each for p in ranks.values()}) == 2
        (tmp_path / "pause" / "sitecustomize.py").unlink()  # once is enough
        for process in (psutil.Process(agents[1].pid), *on_each[1].values()):
            process.send_signal(signal.SIGKILL)
        agents[1].wait()
        agents[1] = nodes[1].start(tmp_path, *options, **env)  # it is back, as a job scheduler would have it
        for agent in agents:
            wait_for(lambda agent=agent: agent.poll() is not None, tmp_path)
    finally:
        for agent in agents:
            agent.terminate()
            agent.wait()
    seen = printed(tmp_path)
    print(seen)
    assert [agent.returncode for agent in agents] == [0, 0], seen
    assert seen.count(f"step {IN_THE_MIDDLE}:") == 2, seen
    assert {f"rank {rank} goes on from step00000020.pt" in seen for rank in range(4)} == {True}, seen
    assert losses(seen) == wanted


def test_two_nodes_without_an_accident_give_the_losses_of_one(nodes, wanted, tmp_path):
    write_programs(tmp_path)
    agents = [node.start(tmp_path, "--rdzv-endpoint", "node0:29500", **environ(tmp_path)) for node in nodes]
    for agent in agents:
        agent.wait()
    assert losses(printed(tmp_path)) == wanted


@pytest.mark.parametrize(
    ("options", "wrong", "message"),
    [
        (("--rdzv-endpoint", "node7:29500"), {}, "The connection to the C10d store has failed"),
        (("--rdzv-endpoint", "node0:29500"), {"GLOO_SOCKET_IFNAME": "eth7"}, "Unable to find address for: eth7"),
    ],
    ids=["host name", "network card"],
)
def test_a_wrong_name_is_told(nodes, tmp_path, options, wrong, message):
    write_programs(tmp_path)
    more = ("--nnodes", "1", "--rdzv-conf", "read_timeout=5")  # the last --nnodes counts
    agent = nodes[0].start(tmp_path, *more, *options, **environ(tmp_path) | wrong)
    assert agent.wait() != 0
    print(printed(tmp_path))
    assert message in printed(tmp_path)
