"""Workers as actors of Ray; the one module that imports it, where it is used.

Each worker is sent the sources that this process runs, and the variables that
JAX and XLA read. A worker of several hosts is an actor on each; they join by
`jax.distributed`, are asked for the same, and the first one answers.
"""
from __future__ import annotations

import collections
import dataclasses
import importlib.util
import logging
import math
import os
import pathlib
import socket
from typing import Any, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import hosts
from spec_cascades.evaluation import attached
from spec_cascades.evaluation import crew
from spec_cascades.evaluation import dealing
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import environment
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import work

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
CONNECT = 5                   # seconds
EPSILON = 1e-6                # .3 / .1 is three times
UNSENT = ['assets', '**/__pycache__']      # of the package
SENT = ('JAX_', 'XLA_', 'LIBTPU_', 'NVIDIA_TF32_')
# So that a worker which takes no GPU sees none.
HIDDEN = {'RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO': '1'}
# Labels of nodes, which Ray itself gives those of a TPU slice on GKE.
SLICE, HOST = 'ray.io/tpu-slice-name', 'ray.io/tpu-worker-id'
TPU = 'TPU'
# Off, before Ray is imported: usage statistics, and messages that it prints
# about workers that died, which we report ourselves.
SETTINGS = dict(RAY_USAGE_STATS_ENABLED='0', RAY_DEDUP_LOGS_SKIP_REGEX='.*')


def load() -> Any:
  """The module `ray`; ValueError if it is not installed."""
  if importlib.util.find_spec('ray') is None:
    raise ValueError('The Ray executor needs ray, which is not installed: '
                     'pip install -r requirements-ray.txt')
  os.environ.update(SETTINGS)
  import ray  # pylint: disable=g-import-not-at-top
  return ray


def connect(settings: Any) -> Any:
  """The module `ray`, connected to the cluster of an `executors.Ray`.

  It stays so until the process ends.

  Raises:
    ConnectionError: This machine's own cluster, 'auto', does not answer: the
      same command may go on later.
    ValueError: No other cluster answers.
  """
  ray = load()
  if ray.is_initialized():
    return ray
  sent = {name: value for name, value in os.environ.items()
          if name.startswith(SENT)}
  own = {} if settings.address else dict(include_dashboard=False)
  try:
    if settings.address not in (None, 'auto'):     # Ray would take minutes
      host, port = settings.address.split(':')
      socket.create_connection((host, int(port)), timeout=CONNECT).close()
    ray.init(settings.address or 'local', log_to_driver=False,
             logging_level=logging.ERROR, runtime_env=dict(
                 py_modules=[str(PACKAGE)], excludes=UNSENT,
                 env_vars=sent | HIDDEN), **own)
  except (OSError, OverflowError, RuntimeError,
          ray.exceptions.RayError) as error:
    kind = ConnectionError if settings.address == 'auto' else ValueError
    raise kind(f'Got address={settings.address!r}, but no Ray cluster '
               f'answers ({_line(error)}). Start one with `ray start --head`, '
               'or leave address out; if it wants a token, set '
               'RAY_AUTH_MODE=token and put it in ~/.ray/auth_token.') from None
  return ray


class Cluster:
  """A `crew.Cluster` of Ray.

  Args:
    settings: An `executors.Ray`.
    job: What workers decode, sent once; None if they need not.
    mesh: That each decodes on.

  Raises:
    ConnectionError, ValueError: See `connect`; or there is no room for the
      workers.
  """

  def __init__(self, settings: Any, job: decoding.Job | None = None,
               mesh: meshes.Mesh = meshes.Mesh()):
    self._ray, self._settings = connect(settings), settings
    self._mesh, self._live = mesh, {}
    self._check()
    self._actor = self._ray.remote(
        num_cpus=settings.num_cpus, num_gpus=settings.num_gpus,
        resources=dict(settings.resources), max_restarts=0, max_task_retries=0,
        scheduling_strategy='SPREAD')(_Worker)
    self._job = self._ray.put(job and _packed(job))

  def start(self) -> Any:
    """A new worker, where there is room: its actors, by host."""
    if self._settings.hosts == 1:
      return self._actor.remote(),
    slices, taken = self._slices(), list(self._live.values())
    free = {name: min(map(self._fits, nodes)) - taken.count(name)
            for name, nodes in slices.items()}
    name = max(free, key=free.get, default=None)
    if name is None or free[name] < 1:  # a host has gone meanwhile
      return ()
    bound = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    worker = tuple(
        self._actor.options(scheduling_strategy=bound(
            node['NodeID'], soft=False)).remote() for node in slices[name])
    self._live[worker] = name
    return worker

  def stop(self, worker: Any) -> None:
    """Kills a worker; one that is dead may be killed again."""
    self._live.pop(worker, None)
    for actor in worker or ():
      self._ray.kill(actor)

  def environment(self, worker: Any) -> Any:
    """Asks for its `environment.here`; to be asked first, since they join."""
    place = worker[0].address.remote() if len(worker) > 1 else None
    return tuple(actor.environment.remote(place, len(worker), i, self._mesh)
                 for i, actor in enumerate(worker))

  def prepare(self, worker: Any, decodes: Sequence[work.Decode]) -> Any:
    """Sends the job and has its programs compiled."""
    return tuple(x.prepare.remote(self._job, decodes) for x in worker)

  def decode(self, worker: Any, unit: work.Unit) -> Any:
    """Has a unit decoded."""
    return tuple(x.decode.remote(unit) for x in worker)

  def ready(self, calls: Sequence[Any], seconds: float) -> Sequence[Any]:
    """Calls that have come to an end, or whose worker has.

    Where one of its actors has failed, the others may wait for it for ever.
    """
    def split():
      found = {call: self._done(call) for call in calls}
      return [call for call, done in found.items() if len(done) == len(call)
              or len(call) > 1 and any(map(self._failed, done))], [
                  x for call, done in found.items() for x in call
                  if x not in done]
    ended, late = split()
    if ended:
      return ended
    self._ray.wait(late, num_returns=1, timeout=seconds)
    return split()[0]

  def result(self, call: Any) -> Any:
    """What a worker returned in a call that is `ready`; or raises `crew.Lost`.
    """
    if not call:
      raise crew.Lost('no slice has all of its hosts')
    for error in filter(None, map(self._failed, self._done(call))):
      raised = isinstance(error, self._ray.exceptions.RayTaskError)
      raise crew.Lost(_line(error.cause if raised else error), raised)
    try:
      return self._ray.get(call[0])
    except self._ray.exceptions.RayError as error:       # lost just now
      raise crew.Lost(_line(error)) from None

  def _done(self, call) -> list[Any]:
    return self._ray.wait(list(call), num_returns=len(call), timeout=0)[0]

  def _failed(self, ref) -> Exception | None:
    try:
      self._ray.get(ref)
    except self._ray.exceptions.RayError as error:
      return error
    return None

  def room(self) -> float:
    """Workers that fit on the nodes that live, each on one, others' apart."""
    if self._settings.hosts == 1:
      return sum(map(self._fits, self._nodes()))
    return sum(min(map(self._fits, nodes)) for nodes in self._slices().values())

  def _check_whole(self) -> None:
    """Refuses all chips of one host of several, which wait for the others'."""
    if self._settings.hosts > 1:
      return
    some = collections.Counter(x['Labels'].get(SLICE) for x in self._nodes())
    for node in self._nodes():
      chips = node['Resources'].get(TPU, 0)
      if chips and some[node['Labels'].get(SLICE, '')] > 1 and (
          self._settings.needs.get(TPU, 0) >= chips):
        raise ValueError(
            f'Got workers of one host that take all its {chips:g} chips, but '
            f'nodes have {_offer(node)}, whose chips run together; allowed: '
            'a worker a chip, or one of all hosts of a slice (HOSTS).')

  def _fits(self, node) -> float:
    needs = self._settings.needs
    return min((math.floor(node['Resources'].get(name, 0) / amount + EPSILON)
                for name, amount in needs.items()), default=math.inf)

  def _nodes(self) -> list[dict[str, Any]]:
    return [node for node in self._ray.nodes() if node['Alive']]

  def _slices(self) -> dict[str, list[dict[str, Any]]]:
    """Nodes by slice, in order, of those slices whose hosts all live."""
    found = collections.defaultdict(lambda: collections.defaultdict(list))
    for node in self._nodes():
      labels = node['Labels']
      if SLICE in labels and labels.get(HOST, '').isdecimal():
        found[labels[SLICE]][int(labels[HOST])].append(node)
    every = {i: 1 for i in range(self._settings.hosts)}
    return {name: [nodes[i][0] for i in every]
            for name, nodes in sorted(found.items())
            if {i: len(some) for i, some in nodes.items()} == every}

  def _check(self) -> None:
    needs, room = self._settings.needs, self.room()
    self._check_whole()
    if room >= self._settings.num_workers:
      return
    offers = '; '.join(_offer(node) for node in self._nodes())
    if (count := self._settings.hosts) > 1:
      raise ValueError(
          f'Got num_workers={self._settings.num_workers} of {count} hosts, '
          f'each of which takes {_words(needs)}; allowed: at most {room:.0f}, '
          f'since the nodes have {offers}. Those of a slice of {count} are '
          f'started with `ray start --labels={SLICE}=NAME,{HOST}=I`, I from 0 '
          f'to {count - 1}.')
    if room:
      raise ValueError(
          f'Got num_workers={self._settings.num_workers}, each with '
          f'{_words(needs)}; allowed: at most {room:.0f}, since the nodes have '
          f'{offers}.')
    raise ValueError(
        f'Got workers that take {_words(needs)} each; no node has that. What '
        f'nodes have: {offers}. Ask for what one node has.')


class _Worker:
  """Runs in a process of its own, on a machine of Ray's choice.

  One of several answers None where the first one does.
  """

  def address(self) -> str:
    """Where others may join it."""
    with socket.socket() as opened:
      opened.bind(('', 0))
      port = opened.getsockname()[1]
    return f'{load().util.get_node_ip_address()}:{port}'

  def environment(self, place, count, index, mesh) -> dict[str, Any]:
    """Of that process, once it has joined the others of its worker."""
    if count > 1:
      hosts.start(place, count, index, mesh=mesh.size)
    try:
      dealing.agree(environment.here())
      if count > 1 and mesh.layouts() and not mesh.spans:
        raise ValueError(
            f'Got {count} hosts of a worker and a mesh of {mesh.size} devices, '
            'which one of them has; allowed: one of all their devices.')
      mesh.layouts()
    except ValueError as error:
      return {**environment.here(), crew.WRONG: str(error)}
    return environment.here()

  def prepare(self, job, decodes) -> list[decoding.Outcome] | None:
    """Loads the models; compiles."""
    self._decoder = decoding.Decoder(_unpacked(job))
    return self._first(self._decoder.prepare(decodes))

  def decode(self, unit) -> list[decoding.Outcome] | None:
    """All outcomes at once, so that a unit is one worker's or nobody's."""
    with timing.CompileLog() as log, timing.quiet():
      outcomes = self._first(self._decoder.decode(unit))
    if outcomes is None:
      return None
    return [*outcomes, decoding.Outcome(late=log.programs)]

  def _first(self, outcomes):
    found = list(outcomes)
    return found if hosts.first() else None


def _packed(job: decoding.Job) -> decoding.Job:
  """A job without what can't be sent, its weights in the host's memory."""
  bare = lambda model: model and dataclasses.replace(
      model, checkpoint=jax.tree.map(np.asarray, model.unpacked()))
  return dataclasses.replace(
      job, pair=dataclasses.replace(
          job.pair, verifier=bare(job.pair.verifier),
          drafter=bare(job.pair.drafter), vocabulary=None),
      curves=[dataclasses.replace(curve, rule=plain(curve.rule))
              for curve in job.curves])


def plain(rule: Any) -> Any:
  """A rule's own class, or one with its options; gin's can't be sent.

  What gin has made of Chow -> targets.Chow; of SeqCascade with
  `normalised=False` -> a SeqCascade whose `normalised` is False by default.
  """
  made = rule()
  cls, usual = type(made), type(made)()
  options = {
      f.name: plain(value) if isinstance(value, type) else value
      for f in dataclasses.fields(cls)
      if (value := getattr(made, f.name)) != getattr(usual, f.name)}
  if not options:
    return cls

  class Bound(type(cls)):

    def __call__(cls_with_options, *args, **kwargs):
      return cls(*args, **{**options, **kwargs})

  return Bound(cls.__name__, (cls,), {})


def _unpacked(job: decoding.Job) -> decoding.Job:
  """Its weights on the device or mesh, as if they had been loaded here."""
  if job.mesh.size > 1:
    return dataclasses.replace(job, pair=attached.placed(job.pair, job.mesh))
  placed = lambda model: model and dataclasses.replace(
      model, checkpoint=jax.tree.map(jnp.asarray, model.checkpoint))
  return dataclasses.replace(job, pair=dataclasses.replace(
      job.pair, verifier=placed(job.pair.verifier),
      drafter=placed(job.pair.drafter)))


def _offer(node: dict[str, Any]) -> str:
  """What a node has: 'CPU 2, TPU 4', and of which slice it is which host."""
  labels = node['Labels']
  place = (f' (host {labels.get(HOST)} of {labels[SLICE]})'
           if SLICE in labels else '')
  return _words({name: amount for name, amount in node['Resources'].items()
                 if ':' not in name and 'memory' not in name}) + place


def _words(resources: dict[str, float]) -> str:
  """{'CPU': 2.0, 'TPU': 4} -> 'CPU 2, TPU 4'"""
  return ', '.join(f'{name} {amount:g}' for name, amount
                   in sorted(resources.items())) or 'nothing'


def _line(error: BaseException) -> str:
  """The first line of a message, which says what; Ray's have many."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return f'{type(error).__name__}: {lines[0] if lines else ""}'
