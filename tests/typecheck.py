"""The checker of shape annotations for the tests' import hook."""
from typing import Any, Callable

import beartype

CONF = beartype.BeartypeConf(is_pep484_tower=True)     # an int is a float too


def functions(fn: Callable) -> Any:
  """beartype, but not of dataclasses: JAX rebuilds pytrees from anything.

  Transforms and `tree.map` put sentinels, shapes and numpy arrays where a
  field's annotation promises a `jax.Array`.
  """
  return fn if fn.__name__ == '__init__' else beartype.beartype(conf=CONF)(fn)
