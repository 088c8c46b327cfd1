"""The compiled programs of a sweep: few, whatever the number of points.

A program is a drafter, a draft length and a length bucket. Thresholds,
temperatures and the choice among rules are traced: all rules of a drafter ride
in one `Choice`, if it takes the step that only some of them need where it is
needed (`kinds.Kind.lazy`); if not, those that read q in one, those that don't
in another. A baseline is a program of its own.
"""
from __future__ import annotations

import collections
import dataclasses
import functools
from typing import Any, Callable, Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import baselines
from spec_cascades import check
from spec_cascades import decode
from spec_cascades import struct
from spec_cascades import targets
from spec_cascades import verify
from spec_cascades import warp as warp_lib
from spec_cascades.drafters import null
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import maps
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import points as points_lib
from spec_cascades.evaluation import rules
from spec_cascades.evaluation import text
from spec_cascades.evaluation import timing


@dataclasses.dataclass(frozen=True)
class Bucket:
  """Inputs of at most `width` tokens; outputs are cut at `max_length`."""
  width: int
  max_length: int


@dataclasses.dataclass(frozen=True)
class Name:
  """What programs differ in."""
  model: str
  drafter: str
  gamma: int
  family: tuple[str, ...] = ()  # labels of the rules to choose among
  part: str = ''                # of all rules, if these are not all
  baseline: str = ''            # its label

  def __str__(self) -> str:
    if self.baseline:
      return self.baseline
    if not self.drafter:
      return f'{self.model} alone'
    return f'{self.drafter}, gamma {self.gamma}{self.part}'


class Programs:
  """Decodes one example at one point; compiles on first use."""

  def __init__(self, pair: pairs.Pair, curves: Sequence[points_lib.Curve], *,
               eos: int | tuple[int, ...] = text.EOS):
    self._pair, self._eos = pair, eos
    by_name = {rules.label(curve.rule): curve.rule for curve in curves}
    self._baselines = {name: rule for name, rule in by_name.items()
                       if rule.__name__ in rules.BASELINES}
    self._rules = by_name
    self._drafted = collections.defaultdict(set)      # by drafter, its rules
    for curve in curves:
      self._drafted[curve.drafter].add(rules.label(curve.rule))
    # What a call needs is made once: the clock must not see it.
    self._spec = functools.lru_cache(maxsize=None)(self._make_spec)
    self._flat = functools.lru_cache(maxsize=None)(
        lambda *args: struct.flat(self._spec(*args)))
    self._names = functools.lru_cache(maxsize=None)(self._make_name)
    self._chosen = functools.lru_cache(maxsize=None)(self._make_chosen)

  def name(self, point: points_lib.Point) -> Name:
    """The program that a point runs on."""
    return self._names(point)

  def _make_name(self, point):
    shared = functools.partial(Name, point.model, point.drafter, point.gamma)
    if point.rule in self._baselines:
      return shared(baseline=point.rule)
    if not point.rule:
      return shared()
    every = sorted(self._drafted[point.drafter] - set(self._baselines))
    reads = self._rules[point.rule].uses_q
    some = tuple(name for name in every if self._rules[name].uses_q == reads)
    if drafting.split(point.drafter)[0].lazy or len(some) == len(every):
      return shared(tuple(every))
    return shared(some, f', rules {"with" if reads else "without"} q')

  def most(self, points: Iterable[points_lib.Point], buckets: Sequence[Bucket],
           plan: Any) -> int:
    """How many programs some points take at most.

    Args:
      points: All of them.
      buckets: Of each example.
      plan: A `work.Plan`.
    """
    shapes = {(bucket, plan.timed_batch) for bucket in buckets[:plan.timed]}
    if plan.staged:
      shapes |= {(bucket, plan.batch) for bucket in buckets}
    return len(set(map(self.name, points))) * len(shapes)

  def call(self, point: points_lib.Point, bucket: Bucket, prompt: Any,
           keys: jax.Array) -> decode.State:
    """Decodes a batch; returns before the device has finished."""
    return _run(*self._args(point, bucket, prompt, keys))

  def loop(self, point: points_lib.Point, bucket: Bucket) -> tuple[Any, ...]:
    """Who decodes a point: the loop, and the parameters of both models."""
    return self._spec(self.name(point), bucket)

  def chosen(self, point: points_lib.Point) -> tuple[Any, Any]:
    """The rule and the warp of a point, on the device."""
    return self._chosen(point)

  def prepare(self, points: Iterable[points_lib.Point]) -> None:
    """Puts rules and warps on the device, so that no timed call has to."""
    for point in points:
      jax.block_until_ready(self.chosen(point))

  def ahead(self, point: points_lib.Point, bucket: Bucket, prompt: Any,
            keys: jax.Array) -> timing.CompileLog:
    """Compiles what `call` will run, and runs nothing; for another thread.

    Raises:
      RuntimeError: The process has no room for one more program.
    """
    maps.check()
    spec, *_ = self.loop(point, bucket)
    if not meshes.spans(spec.lm):      # to look at numbers takes an exchange
      check.call(spec, prompt, keys, *self.chosen(point))
    with timing.CompileLog() as log:
      _run.lower(*self._args(point, bucket, prompt, keys)).compile()
    return log

  def compile(self, point: points_lib.Point, bucket: Bucket, prompt: Any,
              keys: jax.Array) -> timing.CompileLog:
    """Runs a point twice, untimed; returns what had to be compiled."""
    spec, *_ = self.loop(point, bucket)
    target, warp = self.chosen(point)
    check.call(spec, prompt, keys, target, warp)
    jax.block_until_ready((target, warp))
    with timing.CompileLog() as log:
      for _ in range(2):
        jax.block_until_ready(self.call(point, bucket, prompt, keys))
    return log

  def _args(self, point, bucket, prompt, keys):
    """What `_run` takes to decode a point."""
    return (*self._flat(self.name(point), bucket), prompt, keys,
            *self.chosen(point))

  def _make_spec(self, name: Name, bucket: Bucket):
    room = bucket.max_length
    if self._pair.prompt is text.prefix_prompt:
      room += bucket.width
    if name.baseline:
      large, small = self._pair.verifier, self._pair.drafter
      return baselines.Sequential(large.lm, small.lm, room,
                                  self._eos), large.params, small.params
    if not name.drafter:
      model = (self._pair.drafter if name.model == points_lib.DRAFTER
               else self._pair.verifier)
      drafter, draft_params = null.Null(), None
      lm, judge = model.lm, verify.Rejection()
    else:
      model = self._pair.verifier
      drafter, draft_params = drafting.make(
          name.drafter, self._pair, name.gamma)
      lm = drafting.verifier(self._pair, drafter)
      judge = drafting.split(name.drafter)[0].judge
    spec = decode.GenSpecSample(lm, drafter, room, judge, self._eos)
    return spec, model.params, draft_params

  def _make_chosen(self, point):
    return meshes.rows(self._pair.verifier.lm, (
        self._target(point),
        _warp(point.temperature, point.top_k, point.top_p)))

  def _target(self, point: points_lib.Point) -> Any:
    if not point.rule:
      return targets.Lossless()
    if point.rule in self._baselines:
      rule = self._baselines[point.rule](alpha=jnp.float32(point.alpha))
      return jax.tree.map(jnp.asarray, rule)
    family = self.name(point).family
    made = tuple(
        _traced(self._rules[x], point.alpha if x == point.rule else None)
        for x in family)
    if len(made) == 1:
      return made[0]
    return targets.Choice(made, jnp.int32(family.index(point.rule)))


@functools.partial(jax.jit, static_argnums=0)
def _run(structure: struct.Structure, leaves: Sequence[Any],
         *args: Any) -> decode.State:
  """Decodes, and lets go of the caches, which nobody reads."""
  spec, *params = structure(leaves)
  sequential = isinstance(spec, baselines.Sequential)
  run = baselines.run if sequential else decode.run
  state = run(spec, *params, *args).replace(cache=None, drafter=None)
  return meshes.everywhere(spec.lm, state)


def _traced(rule: Any, alpha: float | None) -> Any:
  """A rule with its alpha on the device; None is its default."""
  if not rules.takes_alpha(rule):
    return rule()
  return rule(alpha=jnp.float32(rule().alpha if alpha is None else alpha))


@functools.lru_cache(maxsize=None)
def _warp(temperature: float, top_k: int, top_p: float) -> warp_lib.Warp:
  return warp_lib.Warp(jnp.float32(temperature), jnp.int32(top_k),
                       jnp.float32(top_p), jnp.float32(0), jnp.float32(0))


def bucket_of(length: int, buckets: Iterable[Bucket]) -> Bucket:
  """The narrowest bucket that holds an input of `length` tokens.

  Raises:
    ValueError: There is none.
  """
  fitting = [b for b in buckets if length <= b.width]
  if not fitting:
    raise ValueError(f'An input has {length} tokens; the widest bucket takes '
                     f'{max(b.width for b in buckets)}: add one to BUCKETS.')
  return min(fitting, key=lambda b: b.width)


def check_room(name: Any, length: int, buckets: Iterable[Bucket],
               pair: pairs.Pair) -> None:
  """Refuses an example that no bucket holds, or with its answer no model.

  Args:
    name: Of the example.
    length: Tokens of its input.
    buckets: To choose from.
    pair: Whose decoder reads input and answer, if it has no encoder.
  """
  bucket = bucket_of(length, buckets)
  if pair.prompt is text.prefix_prompt:
    text.check_context(f'Example {name}', length, bucket.max_length,
                       pair.vocabulary)


class Prompts:
  """Examples by bucket, as prompts and keys on the device.

  Args:
    rows: Tokens of each example.
    buckets: To choose from.
    seed: Of the keys, one an example.
    make: How tokens become a prompt.
    lm: Who reads them; if it lies on a mesh, they do, in rows that can be dealt
      out evenly.

  Raises:
    ValueError: An example that no bucket holds.
  """

  def __init__(self, rows: Sequence[Sequence[int]], buckets: Sequence[Bucket],
               seed: int, make: Callable[..., Any] = text.encoder_prompt,
               lm: Any = None):
    self.buckets = [bucket_of(len(row), buckets) for row in rows]
    self._rows, self._make, self._lm = rows, make, lm
    self._keys = decode.row_keys(seed, range(len(rows)))
    # Made once: the clock must not see it.
    self._one = functools.lru_cache(maxsize=None)(self._of)

  def __call__(self, *examples: int, size: int = 1
               ) -> tuple[Bucket, Any, jax.Array]:
    """Bucket, prompt and keys of examples of one bucket, in `size` rows."""
    size += -size % meshes.groups(self._lm)
    return self._one(examples + examples[:1] * (size - len(examples)))

  def _of(self, examples):
    bucket, = {self.buckets[i] for i in examples}
    prompt = self._make([self._rows[i] for i in examples], bucket.width)
    if self._make is text.prefix_prompt:
      prompt = text.capped(prompt, bucket.max_length)
    prompt, keys = meshes.rows(
        self._lm, (prompt, self._keys[np.array(examples)]))
    return jax.block_until_ready((bucket, prompt, keys))


def outputs_of(state: decode.State, starts: Sequence[int] = (1,)
               ) -> list[tuple[list[int], int, dict[str, Any]]]:
  """Tokens from its start, the fault and the counters of each row.

  Rows beyond the starts that are given are left out.
  """
  tokens, lengths, fault, stats = jax.device_get(
      (state.tokens, state.lengths, state.fault, state.stats))
  counters = {f.name: np.asarray(getattr(stats, f.name)).tolist()
              for f in dataclasses.fields(stats)}
  return [(tokens[i, start:lengths[i]].tolist(), int(fault[i]),
           {name: rows[i] for name, rows in counters.items()})
          for i, start in enumerate(starts)]
