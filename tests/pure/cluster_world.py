"""A small world of nodes and a network between them that loses, delays and reorders, for one purpose:
whatever happens, all nodes must share one fate."""

import random
from dataclasses import dataclass, field

from vllm_supervisor.core.causes import Cause
from vllm_supervisor.core.cluster import head as heads
from vllm_supervisor.core.cluster import secondary as others
from vllm_supervisor.core.cluster.messages import BEAT_S

TICK_S = 0.1
LOAD_S = 5.0
LINGER_S = 5.0
"""So long a supervisor lives on after its fate is known: it ends its engine first."""
RESTART_S = 2.0


@dataclass
class Node:
    """One supervisor: its decisions, its engine, and what has become of its starts."""

    rank: int
    mind: object = None
    beat_at: float = 0.0
    launched_at: float | None = None
    ended_at: float | None = None
    back_at: float | None = 0.0
    frozen: bool = False
    told: object = None

    @property
    def loaded(self):
        return self.launched_at is not None and self.ended_at is None


@dataclass
class World:
    """N nodes; time goes on in steps of a tenth of a second."""

    size: int
    seed: int
    loss: float = 0.0
    delay_s: float = 0.5
    prints: dict = field(default_factory=dict)
    now: float = 0.0
    cut: set = field(default_factory=set)
    flying: list = field(default_factory=list)
    endings: list = field(default_factory=list)
    launches: list = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.nodes = [Node(rank) for rank in range(self.size)]
        self.starts = 0

    def begin(self, node):
        self.starts += 1
        name, prints = f"start-{self.starts}", self.prints.get(node.rank, {"version of vllm": "0.32.0"})
        node.mind = (
            heads.Head(self.size, name, prints)
            if node.rank == 0
            else others.Secondary(node.rank, self.size, name, prints)
        )
        node.launched_at = node.ended_at = node.back_at = node.told = None
        node.beat_at = self.now

    def epoch(self, node):
        return node.mind.start if node.rank == 0 else node.mind.epoch

    def ready(self, node):
        return node.mind is not None and node.mind.ready and node.mind.fate is None

    def fail(self, node, cause):
        node.mind = heads.failed(node.mind, cause) if node.rank == 0 else others.failed(node.mind, cause, self.now)

    def kill(self, node, back_s=RESTART_S):
        """The machine is gone, without a word."""
        if node.mind is not None and node.launched_at is not None and node.ended_at is None:
            self.endings.append((self.epoch(node), node.rank, self.now, Cause("node-lost")))
        node.mind, node.back_at = None, None if back_s is None else self.now + back_s

    def run(self, seconds):
        until = self.now + seconds
        while self.now < until:
            self.now += TICK_S
            self._deliver()
            for node in self.nodes:
                if not node.frozen:
                    self._turn(node)

    def _turn(self, node):
        if node.mind is None:
            if node.back_at is not None and self.now >= node.back_at:
                self.begin(node)
            return
        module = heads if node.rank == 0 else others
        node.mind = module.tick(node.mind, self.now)
        if node.mind.may_launch and node.launched_at is None:
            node.launched_at = self.now
            self.launches.append((self.epoch(node), node.rank))
        up = node.launched_at is not None and self.now - node.launched_at >= LOAD_S
        if node.rank == 0 and up:
            node.mind = heads.became_ready(node.mind)
        if node.mind.fate is not None and node.ended_at is None:
            node.ended_at = self.now
            if self.epoch(node):
                self.endings.append((self.epoch(node), node.rank, self.now, node.mind.fate))
        state = (node.mind.fate, up, node.mind.ready, node.mind.may_launch)
        if self.now >= node.beat_at or state != node.told:
            node.beat_at, node.told = self.now + BEAT_S, state
            self._say(node, up)
        if node.ended_at is not None and self.now - node.ended_at >= LINGER_S:
            node.mind, node.back_at = None, self.now + RESTART_S

    def _say(self, node, up):
        if node.rank == 0:
            node.mind, said = heads.word(node.mind)
            targets = range(1, self.size)
        else:
            node.mind, said = others.report(node.mind, up=up)
            targets = (0,)
        for target in targets:
            if self.random.random() >= self.loss:
                self.flying.append((self.now + self.random.uniform(0, self.delay_s), node.rank, target, said))

    def _deliver(self):
        due = [item for item in self.flying if item[0] <= self.now]
        self.flying = [item for item in self.flying if item[0] > self.now]
        self.random.shuffle(due)
        for _, source, target, said in due:
            node = self.nodes[target]
            if node.mind is None or node.frozen or {source, target} & self.cut:
                continue
            module = heads if target == 0 else others
            node.mind = module.heard(node.mind, said, self.now)

    def all_ready(self):
        return all(self.ready(node) for node in self.nodes)
