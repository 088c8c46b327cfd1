"""What a measurement was made on: device, machine and versions."""
from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import jax

from spec_cascades.evaluation import results
from spec_cascades.evaluation import timing
from spec_cascades.models import kernels

LIBRARIES = ('jax', 'jaxlib', 'flax', 'numpy', 'sacrebleu', 'sentencepiece')


def here() -> dict[str, Any]:
  """Of this process; part of a sweep's configuration and of its rows."""
  return dict(device=timing.device(), machine=timing.machine(),
              versions=versions(), code=results.code_digest())


def versions() -> dict[str, str]:
  """Of Python, the libraries and the backend's platform; on a CPU, kernels."""
  found = {name: importlib.metadata.version(name) for name in LIBRARIES}
  if jax.default_backend() == 'cpu':
    found['kernels'] = kernels.name()
  return dict(python=platform.python_version(), **found,
              platform=jax.devices()[0].client.platform_version.split('\n')[0])


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
  """What is another thing than wanted, in words; empty if nothing is.

  {'device': 'cpu', 'versions': {'jax': '1'}}, {..., 'versions': {'jax': '2'}}
  -> 'jax is 1, not 2'
  """
  flat = lambda x: {**x, **x['versions'], 'versions': None}
  found, wanted = flat(found), flat(wanted)
  return ', '.join(f'{name} is {found.get(name)}, not {wanted.get(name)}'
                   for name in dict.fromkeys([*wanted, *found])
                   if found.get(name) != wanted.get(name))
