"""Drafters by name, made for a pair of models; checked before compilation.

A colon and a path behind a name say what a drafter reads besides the pair:
rest:runs/drafters/datastore, tree:runs/trees/x.json, medusa:runs/medusa.
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Iterable

from spec_cascades import check
from spec_cascades import sharding
from spec_cascades.drafters import follower
from spec_cascades.evaluation import kinds
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import rules
from spec_cascades.models import reduced

CHAIN, NULL, KINDS = kinds.CHAIN, kinds.NULL, kinds.KINDS


def split(name: str) -> tuple[kinds.Kind, str]:
  """What a name is of, and the path in it, if any.

  Raises:
    ValueError: There is no such name, or it has a path too many or too few.
  """
  known, colon, path = name.partition(':')
  if known not in KINDS:
    raise ValueError(f'Unknown drafter {name!r}; allowed: {", ".join(KINDS)}.')
  kind = KINDS[known]
  if colon and not (path and kind.read):
    with_path = ', '.join(x for x, kind in KINDS.items() if kind.read)
    raise ValueError(f'Got the drafter {name!r}; a path may follow one of '
                     f'{with_path}.')
  if kind.needs and not path:
    raise ValueError(f'The drafter {known} needs a path, {known}:PATH, of '
                     f'{kind.needs}.')
  return kind, path


def takes_small(name: str) -> bool:
  """Whether a drafter takes the pair's small model."""
  kind, path = split(name)
  return kind.small and not (path and kinds.replaces(kind))


def check_name(name: str, rule: Any, gamma: int) -> None:
  """Raises ValueError for a drafter that does not exist or fit the rule.

  Args:
    name: A key of `KINDS`, with a path where it reads something.
    rule: A rule, or its class.
    gamma: Tokens drafted a round.
  """
  kind, _ = split(name)
  if rule.uses_q and not kind.q:
    own = rule.__name__ if isinstance(rule, type) else type(rule).__name__
    raise ValueError(f'The rule {own} reads the drafter\'s probabilities, '
                     f'which {name} does not have; take the drafter chain or '
                     'the rule Lossless.')
  kind.judge.supports.check_target(kind.judge, rule)
  if not isinstance(gamma, int) or isinstance(gamma, bool):
    raise ValueError(f'Got gamma={gamma!r}; allowed: whole numbers from 1 '
                     f'to {check.MAX_GAMMA}.')
  check.gamma(gamma)


def of_curve(rule: Callable[..., Any], name: str, gamma: int
             ) -> tuple[str, int]:
  """Drafter and draft length of a curve; a baseline has its own.

  Raises:
    ValueError: They don't exist or don't fit the rule.
  """
  check_name(name, rule, gamma)
  if rule.__name__ not in rules.BASELINES:
    return name, gamma
  if name != CHAIN:
    raise ValueError(f'{rule.__name__} asks the small model itself, but got '
                     f'the drafter {name}; leave it out.')
  return CHAIN, rule().length


def own_length(rule: Callable[..., Any], name: str) -> bool:
  """Whether a curve drafts as far as its baseline, or a given tree, does."""
  kind, path = split(name)
  return rule.__name__ in rules.BASELINES or bool(path and kind.own_length)


def supplied(pair: pairs.Pair,
             wanted: Iterable[tuple[Any, ...]]) -> pairs.Pair:
  """A pair with what its drafters read, each once.

  Args:
    pair: The models.
    wanted: Names, draft lengths, and whether a rule reads q (left out: none).

  Raises:
    ValueError: The pair lacks a small model that one needs, a path does not
      hold what it should, or this does not fit the pair, length or rule.
  """
  found = dict(pair.parts)
  # To pack parameters takes them, and workers may have to be sent them.
  outlined = functools.cache(lambda: dataclasses.replace(
      pair, verifier=pairs.outlined(pair.verifier),
      drafter=pair.drafter and pairs.outlined(pair.drafter)))
  for name, gamma, *reads_q in dict.fromkeys(wanted):
    kind, path = split(name)
    if pair.drafter is None and takes_small(name):
      rest = ', '.join(x for x, kind in KINDS.items() if not kind.small)
      raise ValueError(f'The drafter {name} needs a small model, such as '
                       f'--drafter_dir; or take {rest}.')
    if path and name not in found:
      found[name] = pairs.Part(*kind.read(path, pair))
    if kind is KINDS['adaptive']:
      found[name].params.block(gamma + 1)                # was it measured?
    if kinds.trained(kind):
      made, _ = kind.make(outlined(), gamma,
                          found[name].params if path else None)
      if any(reads_q) and not getattr(made, 'has_q', True):
        raise ValueError(f'{name} with gamma {gamma} drafts with all of its '
                         'heads, so that none is left for q, which a rule '
                         'reads; allowed: a smaller gamma, or Lossless.')
  return dataclasses.replace(pair, parts=found)


def verifier(pair: pairs.Pair, drafter: Any) -> Any:
  """A pair's verifier, which hands out the states that a drafter reads."""
  lm = pair.verifier.lm
  if not isinstance(drafter, follower.Follower) or not drafter.features.taps:
    return lm
  return _tapped(lm, drafter.features.taps)


def _tapped(lm, taps):
  """The same, of which the innermost model hands out states of layers."""
  if isinstance(lm, (reduced.Around, sharding.Sharded)):
    return dataclasses.replace(lm, lm=_tapped(lm.lm, taps))
  return dataclasses.replace(lm, taps=taps)


def make(name: str, pair: pairs.Pair, gamma: int) -> tuple[Any, Any]:
  """A drafter and its parameters; see `check_name` and `supplied`.

  It is to decode with `verifier(pair, drafter)`.
  """
  kind, path = split(name)
  if path and name not in pair.parts:
    pair = supplied(pair, [(name, gamma)])
  return kind.make(pair, gamma, pair.parts[name].params if path else None)
