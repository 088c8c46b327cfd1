"""Frozen dataclasses that are pytrees, which `jax.jit` tells apart.

As `flax.struct`, with one difference. There, and wherever
`jax.tree_util.register_dataclass` registers (JAX 0.10 and 0.11), the class is
left out when two tree structures are compared: `Chow(.3)` and `Lossy(.3)` are
equal, and only the hash, of which the cache of `jax.jit` looks at 7 bits, keeps
their programs apart. One pair of rules in 128 then runs the other's program,
without a word. Here the class counts.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import operator
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar('T')


def field(*, pytree_node: bool = True, **kwargs: Any) -> Any:
  """As `dataclasses.field`; `pytree_node=False` makes it static, hashable."""
  return dataclasses.field(metadata=dict(pytree_node=pytree_node), **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def dataclass(cls: type[T]) -> type[T]:
  """Makes `cls` a frozen dataclass and a pytree, with `replace(**fields)`."""
  cls = dataclasses.dataclass(frozen=True)(cls)
  fields = dataclasses.fields(cls)
  node = lambda f: f.metadata.get('pytree_node', True)
  leaves = tuple(f.name for f in fields if node(f))
  static = tuple(f.name for f in fields if not node(f))
  get, get_static = _getter(leaves), _getter(static)
  keys = tuple(jax.tree_util.GetAttrKey(name) for name in leaves)
  jax.tree_util.register_pytree_with_keys(
      cls,
      lambda x: (tuple(zip(keys, get(x))), get_static(x)),
      lambda aux, children: cls(**dict(zip(leaves, children)),
                                **dict(zip(static, aux))),
      lambda x: (get(x), get_static(x)))
  cls.replace = dataclasses.replace
  return cls


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
  """The values of some attributes; in C, as each call of a program needs it."""
  if len(names) > 1:
    return operator.attrgetter(*names)
  return lambda x: tuple([getattr(x, name) for name in names])


@dataclasses.dataclass(frozen=True, eq=False)
class Structure:
  """What a pytree is but for its leaves; `jit` knows it by its identity.

  A call of a compiled program goes through its arguments, leaf by leaf, before
  it begins: for models and drafters that takes a twentieth of a short decode.
  A list of leaves and a structure spare most of that (figures:
  docs/benchmarks.md).
  """
  tree: Any

  def __call__(self, leaves: Sequence[Any]) -> Any:
    """The pytree with these leaves."""
    return self.tree.unflatten(leaves)


_structure = functools.cache(Structure)       # the same one for equal ones


def flat(tree: Any) -> tuple[Structure, list[Any]]:
  """A static argument and a list for a jitted function that puts it together.

    call = jax.jit(lambda structure, leaves: f(*structure(leaves)),
                   static_argnums=0)
    call(*flat((lm, params)))
  """
  leaves, structure = jax.tree.flatten(tree)
  return _structure(structure), leaves


class Fixed:
  """For rules, verifiers and drafters without numbers to validate."""

  def validate(self, batch: int | None = None) -> None:
    """Accepts; there are no numbers."""
    del batch
