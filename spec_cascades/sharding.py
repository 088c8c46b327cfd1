"""Where arrays lie on a mesh of devices: logical axes, and rules as data.

A rule maps a logical axis ('batch', 'heads', ...) to an axis of the mesh. The
partitioner derives the rest from where parameters, caches and rows lie:

    layout = Layout(mesh(data=2, model=4), 'tensor')
    large = Sharded(t5.T5(config), layout)
    small = Sharded(t5.T5(other), layout.replace('data'))    # one on each chip
    params, draft_params = large.pack(params), small.pack(draft_params)
    spec = GenSpecSample(large, Chain(small, 5), max_length=64)
    state = spec(params, draft_params, *layout.rows((prompt, keys)), rule, warp)

References: Shazeer et al. (2018), https://arxiv.org/abs/1811.02084 (rules);
  Shoeybi et al. (2019), https://arxiv.org/abs/1909.08053 (what 'tensor' cuts)
"""
from __future__ import annotations

import dataclasses
from typing import Any, Sequence

import jax
from jax import sharding as jax_sharding
import jax.numpy as jnp
import numpy as np

from spec_cascades.models import products

AXES = ('data', 'model')
# Logical axis -> axis of the mesh; axes that are not listed are not cut.
# 'data': every chip has all weights, and some of the rows.
# 'tensor': attention heads, MLPs and the head are cut, too.
# 'fsdp': and what is left of each matrix, over the data axis: least memory, but
# weights are gathered again in every step. A table of embeddings, of which a
# step reads a row, is cut by row only; a trainer may cut 'table', too.
_TENSOR = (('batch', 'data'), ('heads', 'model'), ('kv_heads', 'model'),
           ('mlp', 'model'), ('vocab', 'model'))
RULES = dict(data=(('batch', 'data'),), tensor=_TENSOR,
             fsdp=(*_TENSOR, ('embed', 'data')))
# Logical axes of parameters, [in, out], by the last name in a path that is
# here. Siblings that are packed as one array lie one after the other, so only
# what they read can be cut.
PARAMETERS = {
    'embedding': ('vocab', 'table'), 'token_embedder': ('embed', 'vocab'),
    'logits_dense': ('embed', 'vocab'), 'rel_embedding': ('heads', None),
    'query': ('embed', 'heads'), 'key': ('embed', 'kv_heads'),
    'value': ('embed', 'kv_heads'), 'out': ('heads', 'embed'),
    'query_bias': ('heads',), 'key_bias': ('kv_heads',),
    'value_bias': ('kv_heads',), 'wi': ('embed', 'mlp'),
    'wi_0': ('embed', 'mlp'), 'wi_1': ('embed', 'mlp'), 'wo': ('mlp', 'embed'),
    **{products.packed_name(group): ('embed', None)
       for group in (*products.FUSED, *products.FUSED_CROSS)}}
JOINED = ('heads', 'kv_heads', 'mlp')    # what packing may put side by side
SLOTS = ('batch', 'kv_heads', None, None)          # keys and values


def mesh(data: int | None = None, model: int = 1,
         devices: Sequence[Any] | None = None) -> jax_sharding.Mesh:
  """A mesh with the axes 'data' and 'model'.

  Args:
    data: Groups of devices that share no row; None: as many as there are.
    model: Devices of a group.
    devices: Those to use, all of them; JAX's if None.

  Raises:
    ValueError: The product is not the number of devices.
  """
  devices = jax.devices() if devices is None else devices
  if model < 1 or (data is not None and data < 1):
    raise ValueError(f'A mesh of data={data}, model={model}; allowed: 1 or '
                     'more each.')
  data = len(devices) // model if data is None else data
  if data * model != len(devices):
    raise ValueError(f'A mesh of data={data}, model={model} on {len(devices)} '
                     'devices; the product must be their number.')
  return jax_sharding.Mesh(np.asarray(devices).reshape(data, model), AXES)


def put(tree: Any, shardings: Any) -> Any:
  """Arrays that this process has, where they belong.

  On a mesh of several processes all of them have to ask, and have the same
  arrays: each puts its part of them on its devices. What lies on the mesh
  already is moved.
  """
  if all(x.is_fully_addressable for x in jax.tree.leaves(shardings)):
    return jax.device_put(tree, shardings)

  def one(x, where):
    if isinstance(x, jax.core.Tracer):
      return jax.device_put(x, where)
    if not getattr(x, 'is_fully_addressable', True):
      return jax.device_put(x, where)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
      return jax.random.wrap_key_data(
          one(jax.random.key_data(x), where), impl=jax.random.key_impl(x))
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, where, whole.__getitem__)
  return jax.tree.map(one, tree, shardings)


@dataclasses.dataclass(frozen=True)
class Layout:
  """A mesh, and what it cuts; hashable.

  Attributes:
    mesh: Of devices, see `mesh`.
    rules: A key of `RULES`, or pairs of a logical axis and an axis of the mesh.
  """
  mesh: jax_sharding.Mesh
  rules: str | tuple[tuple[str, str | None], ...] = 'tensor'

  def __post_init__(self):
    rules = self.rules
    if isinstance(rules, str):
      if rules not in RULES:
        raise ValueError(f'Unknown rules {rules!r}; allowed: '
                         f'{", ".join(RULES)}, or pairs of axes.')
      rules = RULES[rules]
    if not (isinstance(rules, (tuple, list)) and all(
        isinstance(x, (tuple, list)) and len(x) == 2 and isinstance(x[0], str)
        and isinstance(x[1], str | None) for x in rules)):
      raise ValueError(f'Got rules {rules!r}; allowed: {", ".join(RULES)}, or '
                       'pairs of axes.')
    rules = tuple((name, axis) for name, axis in rules)
    known = {'batch', *(x for axes in PARAMETERS.values() for x in axes if x)}
    for name, axis in rules:
      if name not in known or axis not in (None, *self.mesh.axis_names):
        raise ValueError(
            f'The rule {(name, axis)}; allowed: one of '
            f'{", ".join(sorted(known))} and one of '
            f'{", ".join(self.mesh.axis_names)} or None.')
    object.__setattr__(self, 'rules', rules)

  def replace(self, rules: Any) -> Layout:
    """Other rules on the same mesh."""
    return Layout(self.mesh, rules)

  @property
  def spans(self) -> bool:
    """Whether the devices are those of several processes."""
    return self.mesh.is_multi_process

  def cut(self, axis: str | None, size: int,
          config: Any = None) -> str | None:
    """The mesh axis that cuts a logical axis of this size, if one does.

    An axis that can't be cut evenly is not cut: nor are heads, if the number
    of devices does not divide theirs.
    """
    found = dict(self.rules).get(axis)
    if found is None:
      return None
    parts = self.mesh.shape[found]
    heads = getattr(config, 'num_heads', size)
    units = dict(heads=heads, kv_heads=getattr(config, 'num_kv_heads', heads))
    even = size % parts == 0 and units.get(axis, size) % parts == 0
    return found if even and parts > 1 else None

  def spec(self, axes: Sequence[str | None], shape: Sequence[int],
           config: Any = None) -> jax_sharding.PartitionSpec:
    """How an array with these logical axes is cut."""
    cuts = [self.cut(axis, n, config) for axis, n in zip(axes, shape)]
    once = [x if x not in cuts[:i] else None for i, x in enumerate(cuts)]
    return jax_sharding.PartitionSpec(*once)

  def sharding(self, axes: Sequence[str | None], shape: Sequence[int],
               config: Any = None) -> jax_sharding.NamedSharding:
    """The same as a sharding."""
    return jax_sharding.NamedSharding(
        self.mesh, self.spec(axes, shape, config))

  def parameter(self, name: str, shape: Sequence[int], config: Any = None, *,
                turned: bool = False) -> jax_sharding.NamedSharding:
    """Of one parameter; `checkpoints.load` takes it as its `sharding`.

    Args:
      name: Its path, joined by '/'; what has no logical axes is not cut.
      shape: Its own.
      config: The model's; without it heads are cut wherever they can be.
      turned: It is [out, in].
    """
    named = [x for x in reversed(name.split('/')) if x in PARAMETERS]
    axes = PARAMETERS[named[0]] if named else ()
    if len(axes) != len(shape):
      axes = (None,) * len(shape)
    return self.sharding(axes[::-1] if turned else axes, shape, config)

  def parameters(self, params: Any, config: Any = None) -> Any:
    """Shardings of a tree of parameters, in either layout."""
    packed = lambda x: isinstance(x, products.Packed)

    def place(path, x):
      name = '/'.join(str(getattr(k, 'key', k)) for k in path)
      if packed(x):
        return x.replace(array=self.parameter(
            name, x.array.shape, config, turned=x.out_in))
      return self.parameter(name, x.shape, config)

    return jax.tree_util.tree_map_with_path(place, params, is_leaf=packed)

  def by_row(self, tree: Any) -> Any:
    """Shardings of arrays [B, ...]; numbers lie everywhere."""
    return jax.tree.map(
        lambda x: self.sharding(('batch',) * min(1, x.ndim), x.shape), tree)

  def rows(self, tree: Any) -> Any:
    """Puts prompts, keys and numbers by row where their rows belong.

    Raises:
      ValueError: The rows can't be dealt out evenly.
    """
    tree = jax.tree.map(jnp.asarray, tree)
    axis = dict(self.rules).get('batch')
    parts = self.mesh.shape[axis] if axis else 1
    for x in jax.tree.leaves(tree):
      if x.ndim and x.shape[0] % parts:
        raise ValueError(f'{x.shape[0]} rows on a mesh of {parts} groups; '
                         f'allowed: multiples of {parts}. Fill up with copies '
                         'of a row.')
    return put(tree, self.by_row(tree))

  def cache(self, cache: Any, config: Any = None) -> Any:
    """Shardings of a cache, of what an encoder left in it too."""
    return jax.tree.map(lambda x: self.sharding(
        SLOTS if x.ndim == len(SLOTS) else ('batch',), x.shape, config), cache)


@dataclasses.dataclass(frozen=True)
class Sharded:
  """A `LanguageModel` that lies on a mesh.

  Between calls states and logits are cut by row only: each device of a group
  draws the same tokens.
  """
  lm: Any
  layout: Layout

  @property
  def vocab_size(self) -> int:
    return self.lm.vocab_size

  @property
  def config(self) -> Any:
    """The model's, or that of the one that a part is beside."""
    inner = getattr(self.lm, 'lm', None)
    return getattr(self.lm, 'config', getattr(inner, 'config', None))

  def pack(self, params: Any) -> Any:
    """Checkpoint layout -> decode layout, on the mesh."""
    return self.place(self.lm.pack(params, joined=self.joined, cut=True))

  @property
  def joined(self) -> bool:
    """Whether siblings can be one array: not if their outputs are cut."""
    cut = dict(self.layout.rules)
    return all(self.layout.mesh.shape.get(cut.get(x), 1) == 1 for x in JOINED)

  def narrow(self, params: Any, tokens: Any) -> Any:
    """Packed parameters whose head predicts only `tokens`."""
    return self.place(self.lm.narrow(params, tokens))

  def place(self, params: Any) -> Any:
    """Parameters, moved to where they belong; what is there stays."""
    return put(params, self.layout.parameters(params, self.config))

  def everywhere(self, array: Any) -> Any:
    """An array that lies whole on each device."""
    array = jnp.asarray(array)
    return put(array, self.layout.sharding((None,) * array.ndim, array.shape))

  def init(self, params: Any, prompt: Any, capacity: int) -> Any:
    """An empty cache on the mesh."""
    return self._cache(self.lm.init(self._gathered(params), prompt, capacity))

  def extend(self, params: Any, cache: Any, tree: Any) -> tuple[Any, Any]:
    """Hidden states, cut by row, and the cache where it was."""
    params = self._gathered(params, cache.length)
    hidden, cache = self.lm.extend(params, cache, tree)
    return self._by_row(hidden), self._cache(cache)

  def head(self, params: Any, hidden: Any) -> Any:
    """Logits, cut by row.

    They are computed cut by token first: left to itself, the partitioner may
    gather the weight instead of them.
    """
    logits = self.lm.head(self._gathered(params, hidden), hidden)
    axes = ('batch', *(None,) * (logits.ndim - 2), 'vocab')
    logits = jax.lax.with_sharding_constraint(
        logits, self.layout.sharding(axes, logits.shape))
    return self._by_row(logits)

  def _gathered(self, params, now=None):
    """Parameters, whole on the axis that rows lie on.

    They are made to depend on `now`, of this step: a loop would otherwise
    gather them once, and hold all of them.
    """
    rules = dict(self.layout.rules)
    kept = tuple((name, axis) for name, axis in self.layout.rules
                 if axis is None or axis != rules.get('batch'))
    if len(kept) >= len(self.layout.rules) - ('batch' in rules):
      return params
    whole = self.layout.replace(kept).parameters(params, self.config)
    params, _ = jax.lax.optimization_barrier((params, now))
    return jax.lax.with_sharding_constraint(params, whole)

  def _by_row(self, tree):
    return jax.lax.with_sharding_constraint(tree, self.layout.by_row(tree))

  def _cache(self, cache):
    return jax.lax.with_sharding_constraint(
        cache, self.layout.cache(cache, self.config))
