"""Structures of different classes differ: `jax.jit` never mixes them."""
import dataclasses

from flax import struct as flax_struct
import jax
import jax.numpy as jnp
import pytest

from spec_cascades import check, decode, struct, targets, types, verify
from spec_cascades.drafters import chain, ngram, null
from spec_cascades.warp import Warp
from tests.common import LM, P, Q, keys, prompt


def made(module):
  """One of each public dataclass of a module that has defaults."""
  return [x() for x in vars(module).values()
          if isinstance(x, type) and dataclasses.is_dataclass(x)
          and x.__module__.startswith(module.__name__)
          and all(f.default is not dataclasses.MISSING
                  for f in dataclasses.fields(x))]


RULES = made(targets)
JUDGES = made(verify)


@pytest.mark.parametrize('family', [RULES, JUDGES], ids=['rules', 'verifiers'])
def test_each_class_has_a_structure_of_its_own(family):
  structures = [jax.tree.structure(x) for x in family]
  assert len(family) >= 5
  for i, one in enumerate(structures):
    for other in structures[:i]:
      assert one != other and hash(one) != hash(other)


def test_jit_traces_every_rule():
  """On 0.10.2, with `flax.struct`, half of all processes failed here."""
  traced = []

  @jax.jit
  def run(rule, x):
    traced.append(type(rule))
    return x

  for _ in range(2):
    for rule in RULES:
      run(rule, 1.)
  assert traced == [type(rule) for rule in RULES]


@struct.dataclass
class Both:
  data: jax.Array
  static: int = struct.field(pytree_node=False, default=3)


def test_a_dataclass_is_a_pytree():
  x = Both(jnp.arange(2), 4)
  twice = jax.tree.map(lambda leaf: 2 * leaf, x)
  assert isinstance(twice, Both) and twice.static == 4
  assert twice.data.tolist() == [0, 2]
  assert jax.tree.structure(x) == jax.tree.structure(twice)
  assert jax.tree.structure(x) != jax.tree.structure(x.replace(static=5))
  path, = [jax.tree_util.keystr(path)
           for path, _ in jax.tree_util.tree_leaves_with_path(x)]
  assert path == '.data'
  with pytest.raises(dataclasses.FrozenInstanceError):
    x.static = 1


@flax_struct.dataclass
class Foreign(targets.Lossless):
  """As users may write one by habit."""
  alpha: float = .1


@pytest.mark.parametrize('target', [
    Foreign(), targets.Choice((targets.Lossless(), Foreign()), 1)],
    ids=['alone', 'inside'])
def test_a_dataclass_that_jit_may_mix_up_is_refused(target):
  spec = decode.GenSpecSample(LM, chain.Chain(LM, 2), 6, eos=-1)
  with pytest.raises(ValueError, match='Foreign is a flax.struct.dataclass'):
    spec(P, Q, prompt(2), keys(2), target, Warp())


def test_the_parts_of_a_decode_are_told_apart():
  check.told_apart(null.Null(), ngram.NGram(2), chain.Chain(LM, 2, chain.Below(
      .6)), types.Prompt(jnp.ones((1, 1), jnp.int32), jnp.ones(1, jnp.int32)))


def test_flat_is_told_apart_as_the_tree_is():
  """And no more than that: equal structures are one, so that one compiles."""
  add = jax.jit(lambda structure, leaves: structure(leaves)[0].alpha + 1,
                static_argnums=0)
  call = lambda rule, other=2.: float(add(*struct.flat((rule, {'b': other}))))
  assert call(targets.Chow(.25)) == 1.25 and add._cache_size() == 1
  assert call(targets.Chow(.5), 3.) == 1.5 and add._cache_size() == 1
  assert call(targets.Diff(.5)) == 1.5 and add._cache_size() == 2
  structure, leaves = struct.flat((targets.Chow(.25), [1, None]))
  assert structure(leaves) == (targets.Chow(.25), [1, None])
  assert structure is struct.flat((targets.Chow(.75), [5, None]))[0]
