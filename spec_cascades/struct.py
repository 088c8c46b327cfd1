"""Frozen dataclasses that are pytrees, which `jax.jit` tells apart.

As `flax.struct`, with one difference. There, and wherever
`jax.tree_util.register_dataclass` registers (JAX 0.10 and 0.11), the class is
left out when two tree structures are compared: `Chow(.3)` and `Lossy(.3)` are
equal, and only the hash, of which the cache of `jax.jit` looks at 7 bits, keeps
their programs apart. One pair of rules in 128 then runs the other's program,
without a word. Here the class counts.
"""
from __future__ import annotations

import dataclasses
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
  get = lambda x, names: tuple(getattr(x, name) for name in names)
  keys = tuple(jax.tree_util.GetAttrKey(name) for name in leaves)
  jax.tree_util.register_pytree_with_keys(
      cls,
      lambda x: (tuple(zip(keys, get(x, leaves))), get(x, static)),
      lambda aux, children: cls(**dict(zip(leaves, children)),
                                **dict(zip(static, aux))),
      lambda x: (get(x, leaves), get(x, static)))
  cls.replace = dataclasses.replace
  return cls


class Fixed:
  """For rules, verifiers and drafters without numbers to validate."""

  def validate(self, batch: int | None = None) -> None:
    """Accepts; there are no numbers."""
    del batch
