"""Who decodes a sweep: this process, or workers on other machines."""
from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, ClassVar, Iterator, Mapping, Protocol

import jax

from spec_cascades import hosts
from spec_cascades.evaluation import crew
from spec_cascades.evaluation import dealing
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import environment
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import ray_cluster
from spec_cascades.evaluation import results
from spec_cascades.evaluation import timing


class Executor(Protocol):
  """Decodes; keeps no files, and no record of what is done.

  Attributes:
    joins: Whether it is for several processes of one command, too.
  """
  joins: ClassVar[bool]

  def check(self, sweep: Any) -> None:
    """Raises ValueError for a `sweep.Sweep` that it can't run.

    Is called before this process touches a device.
    """

  def here(self, mesh: meshes.Mesh) -> meshes.Mesh:
    """Where models of this process are to lie, if others decode on `mesh`."""

  def inputs(self, mesh: meshes.Mesh) -> dict[str, Any]:
    """What a sweep's keys cover of the mesh of those who decode."""

  def environment(self, mesh: meshes.Mesh) -> dict[str, Any]:
    """`environment.here` of those who decode on a mesh."""

  def decode(self, job: decoding.Job, wanted: Mapping[str, Any],
             source: crew.Source) -> Iterator[decoding.Outcome]:
    """Outcomes of all units that a source has.

    Args:
      job: Of the sweep.
      wanted: What everybody's environment must be; may have more entries.
      source: Is told of each unit when its outcomes have been taken.
    """


@dataclasses.dataclass(frozen=True)
class InProcess:
  """Decodes here, one unit after the other; of several processes in each, or in
  all at once, see `dealing`."""
  joins: ClassVar[bool] = True

  def check(self, sweep: Any) -> None:
    """Anything can be run here."""
    del sweep

  def here(self, mesh: meshes.Mesh) -> meshes.Mesh:
    """This process decodes."""
    return mesh

  def inputs(self, mesh: meshes.Mesh) -> dict[str, Any]:
    """Of a mesh of this process's devices, or of all processes'."""
    return mesh.inputs()

  def environment(self, mesh: meshes.Mesh) -> dict[str, Any]:
    """Of this process."""
    del mesh
    return environment.here()

  def decode(self, job: decoding.Job, wanted: Mapping[str, Any],
             source: crew.Source) -> Iterator[decoding.Outcome]:
    """Compiles and decodes; waits for units that other processes have."""
    del wanted
    if hosts.count() > 1:
      yield from dealing.deal(job, source)
      return
    decoder = decoding.Decoder(job)
    yield from decoder.prepare(source.missing(), source.say)
    source.say('decoding')
    with timing.CompileLog() as log, timing.quiet():
      yield from _handed_in(decoder, source)
    yield decoding.Outcome(late=log.programs)


@dataclasses.dataclass(frozen=True)
class Ray:
  """Has workers of a Ray cluster decode; they need not see any file of ours.

  This process keeps the journal and stays on its CPU: accelerators are for the
  workers. Models and sources are sent to them. A worker decodes on one device,
  or on a mesh of its own: of what it takes of a machine, or of several hosts.

  Attributes:
    num_workers: How many; each holds the models and its compiled programs.
    hosts: Of a worker, which has a process on each; they take a slice: nodes
      that have the same label SLICE, and HOST from 0 (`ray_cluster`).
    num_cpus: That Ray sets aside for each, on each of its hosts.
    num_gpus: The same; 0 hides GPUs from a worker.
    resources: The same, of any others: {'TPU': 1}, say.
    address: 'auto' or HOST:PORT of a cluster that runs; None starts one here.
    restarts: How often each worker is started again after it has died.
  """
  joins: ClassVar[bool] = False
  num_workers: int = 1
  num_cpus: float = 1
  num_gpus: float = 0
  resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
  address: str | None = None
  restarts: int = 3
  hosts: int = 1

  def __post_init__(self):
    for name, least in (('num_workers', 1), ('restarts', 0), ('hosts', 1)):
      value = getattr(self, name)
      if type(value) is not int or value < least:
        raise ValueError(f'Got {name}={value!r}; allowed: a whole number from '
                         f'{least}.')
    for name in ('num_cpus', 'num_gpus'):
      if not _is_amount(getattr(self, name)):
        raise ValueError(f'Got {name}={getattr(self, name)!r}; allowed: a '
                         'number from 0.')
    if not isinstance(self.resources, Mapping) or not all(
        isinstance(name, str) and _is_amount(amount)
        for name, amount in self.resources.items()):
      raise ValueError(f'Got resources={self.resources!r}; allowed: numbers '
                       "from 0 by name, {'TPU': 1} say.")
    if own := {'CPU', 'GPU', 'memory'} & set(self.resources):
      raise ValueError(f'Got resources with {", ".join(sorted(own))}; give '
                       'num_cpus and num_gpus instead.')
    if self.address not in (None, 'auto') and not re.fullmatch(
        r'[^\s:/]+:\d{1,5}', str(self.address)):
      raise ValueError(f"Got address={self.address!r}; allowed: 'auto' or "
                       'HOST:PORT of a cluster that this machine belongs to, '
                       'or None, which starts one here.')

  @property
  def needs(self) -> dict[str, float]:
    """What a worker takes of each of its machines, by Ray's names."""
    every = dict(CPU=self.num_cpus, GPU=self.num_gpus, **self.resources)
    return {name: amount for name, amount in every.items() if amount}

  def check(self, sweep: Any) -> None:
    """Leaves accelerators to the workers; ValueError says what can't be run."""
    if self.hosts > 1 and self.address is None:
      raise ValueError(f"Got workers of {self.hosts} hosts and address=None, "
                       "a cluster on this machine; allowed: 'auto' or "
                       'HOST:PORT of one whose nodes are of slices.')
    if self.hosts > 1 and (size := sweep.mesh.size) % self.hosts:
      raise ValueError(
          f'Got workers of {self.hosts} hosts and a mesh of {size} '
          f'device{"s" * (size > 1)}; allowed: one mesh of all devices of all '
          'hosts of a worker (gin/executors/mesh.gin).')
    if sweep.asked:
      raise ValueError(
          f'Got {sweep.asked}; allowed with Ray: no details. Ask the finished '
          "sweep for them without Ray, on a machine like the workers'.")
    if hosts.count() > 1:
      raise ValueError(f'Got {hosts.count()} processes and workers of Ray; '
                       'allowed: one process, which Ray brings the others to.')
    ray_cluster.load()
    jax.config.update('jax_platforms', 'cpu')
    ray_cluster.connect(self)        # forks, so before JAX has threads

  def here(self, mesh: meshes.Mesh) -> meshes.Mesh:
    """One device, a CPU: workers put what they get on their meshes."""
    del mesh
    return meshes.Mesh()

  def inputs(self, mesh: meshes.Mesh) -> dict[str, Any]:
    """Of a mesh of each worker's own."""
    return mesh.inputs(self.hosts)

  def environment(self, mesh: meshes.Mesh) -> dict[str, Any]:
    """Of a worker that is started for it.

    Raises:
      ChildProcessError: It could not be started, or died.
      ValueError: It has other sources, or too few devices for the mesh.
    """
    cluster = ray_cluster.Cluster(self, mesh=mesh)
    worker = cluster.start()
    try:
      asked = cluster.environment(worker)
      while not cluster.ready([asked], crew.POLL):
        pass                           # until it is there, or never will be
      found = cluster.result(asked)
    except crew.Lost as error:
      raise ChildProcessError(
          f'A worker could not be started: {error}') from None
    finally:
      cluster.stop(worker)
    if wrong := found.get(crew.WRONG):
      raise ValueError(f'A worker: {wrong}')
    if found['code'] != results.code_digest():
      raise ValueError('Workers have other sources of spec_cascades than this '
                       'process; give all the same.')
    return found

  def decode(self, job: decoding.Job, wanted: Mapping[str, Any],
             source: crew.Source) -> Iterator[decoding.Outcome]:
    """A `crew.Crew` decodes; its `__call__` says what it raises."""
    names = ('device', 'machine', 'versions', 'code')
    return crew.Crew(
        ray_cluster.Cluster(self, job, job.mesh), source,
        {name: wanted[name] for name in names},
        self.num_workers, self.restarts)()


def _handed_in(decoder: decoding.Decoder,
               source: crew.Source) -> Iterator[decoding.Outcome]:
  """Outcomes of all units; a batch's while the next one is on the device."""
  behind: list[tuple[int, list[decoding.Outcome]]] = []

  def caught_up():
    for index, outcomes in behind:
      yield from outcomes
      source.done(index)
    behind.clear()

  while True:
    # Who waits for others must hold nothing that they may wait for.
    taken = source.take(wait=not behind)
    if taken is None and not behind:
      return
    if taken is None or taken[1].timed:          # the clock must not see it
      yield from caught_up()
    if taken is None:
      continue
    index, unit = taken
    if unit.timed:
      yield from decoder.decode(unit)
      source.done(index)
      continue
    own = []
    for outcome in decoder.decode(unit):
      if outcome.begun:
        yield from caught_up()
      else:
        own.append(outcome)
    behind.append((index, own))
    if any(outcome.failed for outcome in own):   # the source must know at once
      yield from caught_up()


def _is_amount(value: Any) -> bool:
  return type(value) in (int, float) and 0 <= value < math.inf
