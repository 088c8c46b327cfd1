"""Decoding, compiled for a slice of TPUs that need not be there.

Needs libtpu, of which only the compiler is used. Weights are shapes. Set
JAX_PLATFORMS=cpu before JAX starts.
"""
from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.metadata
import importlib.util
import math
import os
import pathlib
import re
import time
from typing import Any, Sequence

from flax import traverse_util
import jax
import jax.numpy as jnp

from spec_cascades import decode
from spec_cascades import sharding
from spec_cascades import targets
from spec_cascades import types
from spec_cascades import warp as warp_lib
from spec_cascades.checkpoints import loading
from spec_cascades.drafters import chain
from spec_cascades.evaluation import chips
from spec_cascades.evaluation import faults as faults_lib
from spec_cascades.evaluation import hlo
from spec_cascades.evaluation import pairs
from spec_cascades.models import prefill
from spec_cascades.models import presets
from spec_cascades.models import products
from spec_cascades.models import t5

LIBTPU = '0.0.42.*'
# What the compiler says of programs that are too large, in either wording.
FULL = re.compile(r'Used (\S+) of (\S+) hbm|'
                  r'required.*?\((\S+)\) exceeds available HBM \((\S+)\)',
                  re.I)


@dataclasses.dataclass(frozen=True)
class Case:
  """A pair of models, how they lie on a slice, and what they decode.

  Attributes:
    verifier: A name of `models/presets.py`.
    drafter: Another, of the same vocabulary.
    gamma: Draft length.
    batch: Rows.
    prompt: Tokens of a row's input.
    new_tokens: That are decoded.
    data: Groups of chips that share no row; the others are 'model'.
    rules: The verifier's, see `sharding.Layout`.
    drafter_rules: The drafter's.
    dtype: Of weights, activations and caches.
    uses_q: Whether the rule reads q at the last node.
    layers: Of each stack; None as published.
  """
  verifier: str
  drafter: str
  gamma: int = 5
  batch: int = 1
  prompt: int = 512
  new_tokens: int = 128
  data: int = 1
  rules: Any = 'tensor'
  drafter_rules: Any = 'data'
  dtype: str = 'bfloat16'
  uses_q: bool = False
  layers: int | None = None

  def __post_init__(self):
    wrong = lambda name, allowed: ValueError(
        f'Got {name}={getattr(self, name)!r}; allowed: {allowed}.')
    for name in ('gamma', 'batch', 'prompt', 'new_tokens', 'data', 'layers'):
      value = getattr(self, name)
      if not (type(value) is int and value >= 1 or name == 'layers' and
              value is None):
        raise wrong(name, 'a whole number, 1 or more')
    if self.gamma >= prefill.CHUNK:
      raise wrong('gamma', f'less than {prefill.CHUNK}')
    if self.dtype not in pairs.DTYPES:
      raise wrong('dtype', ', '.join(pairs.DTYPES))
    if not isinstance(self.uses_q, bool):
      raise wrong('uses_q', 'True or False')
    for name in ('rules', 'drafter_rules'):
      if not isinstance(getattr(self, name), (str, tuple)):
        raise wrong(name, f'{", ".join(sharding.RULES)}, or pairs of axes')
    if self.batch % self.data:
      raise ValueError(f'{self.batch} rows on data={self.data} groups of '
                       'chips; allowed: a multiple.')

  def models(self) -> tuple[Any, Any]:
    """Verifier and drafter.

    Raises:
      ValueError: An unknown name, or two vocabularies.
    """
    p, q = (self._model(name) for name in (self.verifier, self.drafter))
    if p.vocab_size != q.vocab_size or isinstance(p, t5.T5) != isinstance(
        q, t5.T5):
      raise ValueError(f'{self.verifier} and {self.drafter} do not go together:'
                       f' {type(p).__name__} of {p.vocab_size} tokens, '
                       f'{type(q).__name__} of {q.vocab_size}.')
    return p, q

  def _model(self, name):
    lm = presets.model(name, dtype=self.dtype)
    if self.layers is None:
      return lm
    depth = {x.name: self.layers for x in dataclasses.fields(lm.config)
             if x.name.endswith('_layers')}
    return dataclasses.replace(
        lm, config=dataclasses.replace(lm.config, **depth))


@dataclasses.dataclass(frozen=True)
class Compiled:
  """One program, of one chip; bytes unless it says otherwise.

  `work.nbytes` are what a step cannot do without: each argument read once, a
  table of embeddings by row, results written. `counted` is the compiler's own
  count, in which on-chip memory counts, too, and such a table as a whole.
  `optimal` is XLA's own estimate of its seconds, 0 where that is not above 0.
  `excess` says by how much it does not fit; the rest then is empty.
  """
  name: str
  seconds: float                     # to compile
  arguments: int = 0
  temporary: int = 0
  total: int = 0
  donated: int = 0
  counted: float = 0.
  work: chips.Work = chips.Work(0, 0)
  text: str = dataclasses.field(default='', repr=False)
  excess: str = ''
  optimal: float = 0.


def devices(slice_: chips.Topology) -> Sequence[Any]:
  """The chips of a slice, for a mesh.

  Raises:
    ValueError: There is no libtpu, or it does not know the slice.
  """
  found = importlib.util.find_spec('libtpu')
  if found is None:
    raise ValueError('libtpu is not installed, and without it nothing can be '
                     f"compiled for a TPU: pip install 'libtpu=={LIBTPU}'.")
  library = pathlib.Path(found.submodule_search_locations[0]) / 'libtpu.so'
  for name, value in dict(
      TPU_LIBRARY_PATH=str(library), TPU_SKIP_MDS_QUERY='1',
      TPU_WORKER_HOSTNAMES='localhost', ALLOW_MULTIPLE_LIBTPU_LOAD='1',
      TPU_STDERR_LOG_LEVEL='3',
      TPU_MIN_LOG_LEVEL='3').items():
    os.environ.setdefault(name, value)
  from jax.experimental import topologies  # pylint: disable=g-import-not-at-top
  more = dict(chip_config_name='megacore', chips_per_host_bounds=(2, 2, 1),
              num_slices=1) if slice_.kind == 'v4' else {}
  try:
    made = topologies.get_topology_desc(
        platform='tpu', topology_name=slice_.name, **more)
  except Exception as error:  # pylint: disable=broad-exception-caught
    raise ValueError(f'libtpu does not make {slice_.name}: '
                     f'{str(error).splitlines()[0]}') from None
  if len(made.devices) != slice_.size:
    raise ValueError(f'libtpu makes {len(made.devices)} devices of '
                     f'{slice_.name}, not {slice_.size}.')
  return made.devices


def version() -> str:
  """Of libtpu; its folder need not be in site-packages."""
  return importlib.metadata.version('libtpu')


class Programs:
  """Compiles what a case needs, one after the other."""

  def __init__(self, case: Case, chips_: Sequence[Any]):
    """Shapes of everything; compiles nothing.

    Raises:
      ValueError: The chips can't be arranged so.
    """
    if len(chips_) % case.data:
      raise ValueError(f'{len(chips_)} chips in data={case.data} groups; '
                       f'allowed: what divides {len(chips_)}.')
    self.case = case
    mesh = sharding.mesh(case.data, len(chips_) // case.data, chips_)
    layouts = [sharding.Layout(mesh, x)
               for x in (case.rules, case.drafter_rules)]
    self.verifier, self.drafter = (
        sharding.Sharded(lm, layout)
        for lm, layout in zip(case.models(), layouts))
    self.params, self.draft_params = (
        _params(x) for x in (self.verifier, self.drafter))
    length = case.new_tokens + (1 if self._encodes else case.prompt)
    self.spec = decode.GenSpecSample(
        self.verifier, chain.Chain(self.drafter, case.gamma), length)
    rule = targets.Chow(.4) if case.uses_q else targets.Lossless()
    self._rule = rule, warp_lib.Warp(1.)

  @property
  def _encodes(self):
    return isinstance(self.verifier.lm, t5.T5)

  def prefill(self) -> Compiled:
    """Both models read the prompts."""
    return self._compile('prefill', decode.GenSpecSample.init, self.spec,
                         self.params, self.draft_params, *self._rows())

  def reading(self) -> list[tuple[Compiled, float]]:
    """Programs that read the prompts, and how often each runs.

    XLA counts what a loop runs once: prompts that `prefill` reads in a loop are
    counted by the blocks of each model.
    """
    size = self.case.prompt - 1
    if self._encodes or size < 2 * prefill.CHUNK:
      return [(self.prefill(), 1)]
    return [(self._block(model, params, prefill.CHUNK, f'reading by the {name}',
                         scored=False), size / prefill.CHUNK)
            for name, model, params in (
                ('verifier', self.verifier, self.params),
                ('drafter', self.drafter, self.draft_params))]

  def round(self) -> Compiled:
    """One round; the state is donated."""
    # Without q the first call of gamma is ahead of the drafter's loop.
    trips = self.case.gamma + (1 if self.case.uses_q else -1)
    return self._compile(
        'one round', decode.GenSpecSample.step, self.spec, self.params,
        self.draft_params, *self._rule, self.state(), trips=trips,
        donate_argnames='state')

  def loop(self) -> Compiled:
    """The whole decode."""
    prompt, keys = self._rows()
    return self._compile('whole loop', decode.run, self.spec, self.params,
                         self.draft_params, prompt, keys, *self._rule)

  def block(self, width: int) -> Compiled:
    """The verifier's states and logits of a block."""
    return self._block(self.verifier, self.params, width,
                       f'verification of {width}')

  def draft(self) -> Compiled:
    """A drafter step."""
    return self._block(self.drafter, self.draft_params, 1, 'drafter step')

  def judging(self) -> Compiled:
    """Sampling and acceptance of a round, all logits given."""
    n, (_, keys) = self.spec.drafter.num_nodes, self._rows()

    def judge(keys, q, logits):
      target, warp = self._rule
      propose, accept = decode.round_keys(keys, jnp.zeros(len(q), int))
      # A step at a time, as the drafter draws.
      steps = zip(jnp.unstack(q, axis=1), warp_lib.draws(warp, propose, n))
      laws, drawn = zip(*(warp.drawn(*step) for step in steps))
      q = jax.tree.map(lambda *x: jnp.stack(x, 1), *laws)
      tokens = jnp.stack([jnp.zeros_like(drawn[0]), *drawn[:-1]], 1)
      draft = types.Draft(types.chain(tokens), q, jnp.full(len(tokens), n),
                          max_depth=n - 1)
      return self.spec.judge(accept, draft, logits, target, warp)

    logits = self._by_row(jax.ShapeDtypeStruct(
        (self.case.batch, n, self.verifier.vocab_size), jnp.float32))
    return self._compile('sampling and acceptance', judge, keys, logits, logits)

  def sampling(self) -> Compiled:
    """A token a row, as the verifier alone draws it, all logits given."""
    draw = lambda keys, logits: jax.vmap(warp_lib.sample)(
        self._rule[1](logits).probs, keys)
    logits = self._by_row(jax.ShapeDtypeStruct(
        (self.case.batch, self.verifier.vocab_size), jnp.float32))
    return self._compile('sampling', draw, self._rows()[1], logits)

  def state(self) -> decode.State:
    """Shapes of a state and where its arrays lie."""
    state = jax.eval_shape(decode.GenSpecSample.init, self.spec, self.params,
                           self.draft_params, *self._rows())
    p, q = self.verifier, self.drafter
    where = p.layout.by_row(state).replace(
        cache=p.layout.cache(state.cache, p.config),
        drafter=q.layout.cache(state.drafter, q.config))
    return _placed(state, where)

  def faults(self, loop: Compiled) -> list[str]:
    """Lines of the decode loop that should not be there, see `faults.lines`."""
    state = self.state()
    expected = functools.partial(
        faults_lib.expected, models=(self.verifier, self.drafter),
        params=(self.params, self.draft_params),
        rows=self.case.batch, nodes=self.spec.drafter.num_nodes)
    return faults_lib.lines(faults_lib.loop_of(loop.text),
                            (state.cache, state.drafter), expected)

  def cache(self, model: sharding.Sharded, params: Any, width: int) -> Any:
    """Shapes of a cache with room for a block behind a whole text."""
    capacity = self.spec.max_length + max(width, self.spec.drafter.num_nodes)
    prompt, _ = self._rows()
    cache = jax.eval_shape(
        lambda p, x: model.init(p, x, capacity), params, prompt)
    return _placed(cache, model.layout.cache(cache, model.config))

  def _block(self, model, params, width, name, *, scored=True):
    cache = self.cache(model, params, width)

    def score(params, cache, tokens):
      hidden, cache = model.extend(params, cache, types.chain(tokens))
      return (model.head(params, hidden) if scored else ()), cache

    tokens = jnp.zeros((self.case.batch, width), jnp.int32)
    tokens = self._by_row(jax.eval_shape(lambda: tokens))
    table = params['token_embedder']['embedding']
    used = scored and model.config.logits_via_embedding
    return self._compile(
        name, score, params, cache, tokens, donate_argnames='cache',
        by_row=0 if used else table.dtype.itemsize * math.prod(
            table.sharding.shard_shape(table.shape)))

  def _rows(self):
    b, width = self.case.batch, self.case.prompt
    def make():
      text = jnp.zeros((b, width), jnp.int32)
      keys = decode.row_keys(0, jnp.arange(b))
      one = jnp.ones(b, jnp.int32)
      if self._encodes:
        return types.Prompt(jnp.zeros((b, 1), jnp.int32), one, text), keys
      return types.Prompt(text, one), keys
    return self._by_row(jax.eval_shape(make))

  def _by_row(self, tree):
    return _placed(tree, self.verifier.layout.by_row(tree))

  def _compile(self, name, function, *args, trips=1, by_row=0,
               **options) -> Compiled:
    start = time.perf_counter()
    jitted = (function if hasattr(function, 'lower')
              else jax.jit(function, **options))
    try:
      made = jitted.lower(*args).compile()
    except jax.errors.JaxRuntimeError as error:
      found = FULL.search(str(error))
      if not found:
        raise ValueError(f'{name} does not compile: '
                         f'{" ".join(str(error).split())[:300]}') from None
      needed, there = (found[1], found[2]) if found[1] else (found[3], found[4])
      return Compiled(name, time.perf_counter() - start,
                      excess=f'needs {needed}, and {there} is there')
    return _described(name, made, time.perf_counter() - start, trips, by_row)


def _described(name, made, seconds, trips, by_row) -> Compiled:
  memory, text = made.memory_analysis(), made.as_text()
  costs = made.cost_analysis()
  counts = collections.Counter()
  for x, times in hlo.parse(text).weighted(trips):
    if x.kind:
      counts[x.kind, x.nbytes, x.group] += times
  written = memory.output_size_in_bytes - memory.alias_size_in_bytes
  held = memory.argument_size_in_bytes + written
  work = chips.Work(costs.get('flops', 0.), held - by_row,
                    tuple(chips.Collective(*x, n) for x, n in counts.items()))
  return Compiled(
      name, seconds, memory.argument_size_in_bytes, memory.temp_size_in_bytes,
      held + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
      memory.alias_size_in_bytes, costs.get('bytes accessed', 0.), work, text,
      optimal=max(0., costs.get('optimal_seconds', 0.)))


def _params(model: sharding.Sharded) -> Any:
  """Shapes of packed parameters and where they lie."""
  shape = lambda n: jax.ShapeDtypeStruct(n, jnp.float32)
  plain = traverse_util.unflatten_dict(
      {name: shape(x) for name, x in loading.expected(model.lm).items()},
      sep='/')
  config = model.config
  packed = jax.eval_shape(functools.partial(
      products.pack, backend='tpu', dtype=config.dtype, joined=model.joined,
      tied=config.logits_via_embedding), plain)
  return _placed(packed, model.layout.parameters(packed, config))


def _placed(tree: Any, where: Any) -> Any:
  return jax.tree.map(lambda x, y: jax.ShapeDtypeStruct(
      x.shape, x.dtype, sharding=y), tree, where)
