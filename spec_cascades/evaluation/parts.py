"""What drafters that are no models are given, read by the drafter's name."""
from __future__ import annotations

import dataclasses
import hashlib
import pathlib
from typing import Mapping

from spec_cascades.evaluation import costs
from spec_cascades.evaluation import datastores
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import skipping


def datastore(path: str, pair: pairs.Pair) -> pairs.Part:
  """A text and its suffixes, see scripts/build_datastore.py."""
  return pairs.Part(*datastores.read(path, pair.vocabulary_sha256,
                                     pair.verifier.lm.vocab_size))


def step_costs(path: str, pair: pairs.Pair) -> pairs.Part:
  """Times of steps, see scripts/benchmark.py steps --output."""
  del pair
  place = pathlib.Path(path).expanduser()
  times = costs.read(place).times
  return pairs.Part(times, hashlib.sha256(place.read_bytes()).hexdigest())


def left_out(path: str, pair: pairs.Pair) -> pairs.Part:
  """Sublayers to draft without, see scripts/search_layers.py."""
  skipped = skipping.read(path, pair.verifier.sha256, pair.verifier.lm)
  digest = hashlib.sha256(repr(skipped).encode()).hexdigest()
  return pairs.Part(skipped, digest)


READERS = dict(rest=datastore, adaptive=step_costs, sublayers=left_out)


def added(pair: pairs.Pair, paths: Mapping[str, str]) -> pairs.Pair:
  """A pair with what its drafters need besides.

  Args:
    pair: The models.
    paths: By the name of a drafter, a key of `READERS`, where to read.

  Raises:
    ValueError: Another name, or a path that does not hold what it should.
  """
  for name in paths:
    if name not in READERS:
      raise ValueError(f'Got a part for the drafter {name!r}; allowed: '
                       f'{", ".join(READERS)}.')
  found = {name: READERS[name](path, pair) for name, path in paths.items()}
  return dataclasses.replace(pair, parts={**pair.parts, **found})
