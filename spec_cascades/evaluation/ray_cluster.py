"""Workers as actors of Ray; the one module that imports it, where it is used.

Each worker is sent the sources that this process runs, and the variables that
JAX and XLA read.
"""
from __future__ import annotations

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

from spec_cascades.evaluation import crew
from spec_cascades.evaluation import decoding
from spec_cascades.evaluation import environment
from spec_cascades.evaluation import timing
from spec_cascades.evaluation import work

PACKAGE = pathlib.Path(__file__).resolve().parents[1]
CONNECT = 5                   # seconds
EPSILON = 1e-6                # .3 / .1 is three times
UNSENT = ['assets', '**/__pycache__']      # of the package
SENT = ('JAX_', 'XLA_', 'LIBTPU_', 'NVIDIA_TF32_')
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
                 py_modules=[str(PACKAGE)], excludes=UNSENT, env_vars=sent),
             **own)
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

  Raises:
    ConnectionError, ValueError: See `connect`; or there is no room for the
      workers.
  """

  def __init__(self, settings: Any, job: decoding.Job | None = None):
    self._ray, self._settings = connect(settings), settings
    self._check()
    self._actor = self._ray.remote(
        num_cpus=settings.num_cpus, num_gpus=settings.num_gpus,
        resources=dict(settings.resources), max_restarts=0, max_task_retries=0,
        scheduling_strategy='SPREAD')(_Worker)
    self._job = self._ray.put(job and _packed(job))

  def start(self) -> Any:
    """A new worker, where there is room."""
    return self._actor.remote()

  def stop(self, worker: Any) -> None:
    """Kills a worker; one that is dead may be killed again."""
    self._ray.kill(worker)

  def environment(self, worker: Any) -> Any:
    """Asks for its `environment.here`."""
    return worker.environment.remote()

  def prepare(self, worker: Any, decodes: Sequence[work.Decode]) -> Any:
    """Sends the job and has its programs compiled."""
    return worker.prepare.remote(self._job, decodes)

  def decode(self, worker: Any, unit: work.Unit) -> Any:
    """Has a unit decoded."""
    return worker.decode.remote(unit)

  def ready(self, calls: Sequence[Any], seconds: float) -> Sequence[Any]:
    """Calls that have come to an end, or whose worker has."""
    return self._ray.wait(calls, num_returns=1, timeout=seconds)[0]

  def result(self, call: Any) -> Any:
    """What a worker returned; raises `crew.Lost` for anything else."""
    try:
      return self._ray.get(call)
    except self._ray.exceptions.RayTaskError as error:
      raise crew.Lost(_line(error.cause)) from None
    except self._ray.exceptions.RayError as error:
      raise crew.Lost(_line(error)) from None

  def room(self) -> float:
    """Workers that fit on the nodes that live, each on one, others' apart."""
    needs = self._settings.needs
    return sum(min((math.floor(x.get(name, 0) / amount + EPSILON)
                    for name, amount in needs.items()), default=math.inf)
               for x in self._offers())

  def _offers(self) -> list[dict[str, float]]:
    return [node['Resources'] for node in self._ray.nodes() if node['Alive']]

  def _check(self) -> None:
    needs, room = self._settings.needs, self.room()
    if room >= self._settings.num_workers:
      return
    offers = '; '.join(_words({
        name: amount for name, amount in x.items()
        if ':' not in name and 'memory' not in name}) for x in self._offers())
    if room:
      raise ValueError(
          f'Got num_workers={self._settings.num_workers}, each with '
          f'{_words(needs)}; allowed: at most {room:.0f}, since the nodes have '
          f'{offers}.')
    raise ValueError(
        f'Got workers that take {_words(needs)} each; no node has that. What '
        f'nodes have: {offers}. Ask for what one node has.')


class _Worker:
  """Runs in a process of its own, on a machine of Ray's choice."""

  def environment(self) -> dict[str, Any]:
    """Of that process."""
    return environment.here()

  def prepare(self, job, decodes) -> list[decoding.Outcome]:
    """Loads the models; compiles."""
    self._decoder = decoding.Decoder(_unpacked(job))
    return list(self._decoder.prepare(decodes))

  def decode(self, unit) -> list[decoding.Outcome]:
    """All outcomes at once, so that a unit is one worker's or nobody's."""
    with timing.CompileLog() as log, timing.quiet():
      outcomes = list(self._decoder.decode(unit))
    return [*outcomes, decoding.Outcome(late=log.programs)]


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
  """Its weights on the device, as if they had been loaded here."""
  placed = lambda model: model and dataclasses.replace(
      model, checkpoint=jax.tree.map(jnp.asarray, model.checkpoint))
  return dataclasses.replace(job, pair=dataclasses.replace(
      job.pair, verifier=placed(job.pair.verifier),
      drafter=placed(job.pair.drafter)))


def _words(resources: dict[str, float]) -> str:
  """{'CPU': 2.0, 'TPU': 4} -> 'CPU 2, TPU 4'"""
  return ', '.join(f'{name} {amount:g}' for name, amount
                   in sorted(resources.items())) or 'nothing'


def _line(error: BaseException) -> str:
  """The first line of a message, which says what; Ray's have many."""
  lines = [line.strip() for line in str(error).splitlines() if line.strip()]
  return f'{type(error).__name__}: {lines[0] if lines else ""}'
