"""Step costs made up of round numbers: no model, no clock."""
import dataclasses

from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import costs


def make(verifier=None, drafter=1., **changes):
  """Costs with medians of these seconds."""
  spread = lambda x: benchmarks.Spread(x, x / 2, x * 2)
  seconds = {1: 10., 6: 15.} if verifier is None else verifier
  return dataclasses.replace(costs.Costs(
      {w: spread(x) for w, x in seconds.items()}, spread(drafter), [],
      dict(verifier='verifier', drafter='drafter'), 'cpu',
      'a processor, 2 cores', .5, dict(jax='0.10.2'),
      '2026-01-01T00:00:00+00:00'), **changes)
