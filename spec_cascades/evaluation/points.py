"""The grid of a sweep: what is decoded with which rule."""
from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from typing import Any, Callable, Mapping, Sequence

from spec_cascades import baselines
from spec_cascades import targets
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import rules

MAX_POINTS = 500
VERIFIER, DRAFTER = 'verifier', 'drafter'
# Here p never looks at a token that q has written: it takes q's place, or
# writes a whole response again.
UNJUDGED = frozenset(rule.__name__ for rule in (
    baselines.SeqCascade, baselines.TokenCascade, baselines.OracleCascade))


@dataclasses.dataclass(frozen=True)
class Curve:
  """One rule at some thresholds: a line in the plot.

  Attributes:
    rule: A class of `spec_cascades.targets` or `baselines`, or one like it.
    alphas: Its thresholds; empty for a rule without one.
    temperatures: Each alpha is run at each; 0 is greedy.
    drafter: A key of `drafting.KINDS`, with a path where it reads one.
    name: What the plot calls it; the rule's name if empty.
    gammas: Draft lengths, each a line of its own; empty: the sweep's. For
      baselines and trees of a file, which have their own, only empty.
  """
  rule: Callable[..., Any]
  alphas: tuple[float, ...] = ()
  temperatures: tuple[float, ...] = (1.0, 0.0)
  drafter: str = 'chain'
  name: str = ''
  gammas: tuple[int, ...] = ()

  def __post_init__(self):
    rules.check_class(self.rule)
    if not isinstance(self.drafter, str):
      raise ValueError(f'Got drafter={self.drafter!r}; allowed: the name of a '
                       "kind, such as 'chain'.")
    for name in ('alphas', 'temperatures', 'gammas'):
      given = getattr(self, name)
      if not (isinstance(given, (tuple, list))
              and all(isinstance(x, (int, float)) for x in given)):
        raise ValueError(f'Got {name}={given!r}; allowed: a tuple of numbers, '
                         'such as (0.3,).')


@dataclasses.dataclass(frozen=True)
class Point:
  """One setting of a sweep. Its fields are part of its content key."""
  method: str
  rule: str                   # `rules.label`; '' for a model alone
  alpha: float | None
  temperature: float
  top_k: int
  top_p: float
  gamma: int                  # 0 for a model alone; a baseline has its own
  drafter: str                # '' for a model alone
  model: str = VERIFIER       # who decodes alone, or verifies

  @property
  def label(self) -> str:
    """Method, alpha and temperature, for messages."""
    alpha = '' if self.alpha is None else f' alpha={self.alpha:g}'
    return f'{self.method}{alpha} T={self.temperature:g}'

  @property
  def judged(self) -> bool:
    """Whether draft tokens are accepted or rejected, one by one."""
    return bool(self.drafter) and self.rule.split('(')[0] not in UNJUDGED


def check_curves(curves: Any) -> None:
  """Raises ValueError for what is no list of curves."""
  if not (isinstance(curves, (tuple, list))
          and all(isinstance(x, Curve) for x in curves)):
    raise ValueError(f'Got curves={curves!r}; allowed: a list of curves, such '
                     'as [@lossless/points.Curve()] in gin.')


def expand(curves: Sequence[Curve], *, gamma: int, top_p: float = 1.0,
           top_k: int = 0, alone: Sequence[str] = (VERIFIER, DRAFTER)
           ) -> list[Point]:
  """All points: the models alone at each temperature, then the curves'.

  Raises:
    ValueError: A number outside its domain, draft lengths where there is one,
      a point twice, too many, or two rules of one name.
  """
  rules.check_names(curve.rule for curve in curves)
  heats = {float(t): None for curve in curves for t in curve.temperatures}
  warp = dict(top_k=top_k, top_p=float(top_p))
  points = [Point(model, '', None, heat, gamma=0, drafter='', model=model,
                  **warp)
            for heat in heats or {1.0: None} for model in alone]
  for curve in curves:
    for heat in curve.temperatures:
      rules.check_heat(curve.rule, heat)
    for alpha in curve.alphas or (None,):
      rules.check_alpha(curve.rule, alpha)
    if curve.gammas and drafting.own_length(curve.rule, curve.drafter):
      raise ValueError(f'Got gammas={curve.gammas!r} of a curve of '
                       f'{method_name(curve.rule)} with {curve.drafter}, which '
                       'drafts as far as it does; leave them out, or set ().')
    for own, heat, alpha in itertools.product(
        curve.gammas or (gamma,), curve.temperatures, curve.alphas or (None,)):
      drafter, length = drafting.of_curve(curve.rule, curve.drafter, own)
      name = curve.name or method_name(curve.rule)
      points.append(Point(
          f'{name}, gamma {own}' if len(curve.gammas) > 1 else name,
          rules.label(curve.rule), None if alpha is None else float(alpha),
          float(heat), gamma=length, drafter=drafter, **warp))
  for point in points:
    rules.check_sampling(point.temperature, point.top_p, point.top_k)
  kinds = collections.defaultdict(set)
  for point in points:
    kinds[point.method, point.temperature].add(
        (point.rule, point.drafter, point.gamma))
  for (method, _), some in kinds.items():
    if len(some) > 1:
      raise ValueError(f'Two curves are named {method} at one temperature, but '
                       'differ in rule, drafter or gamma; allowed: a name for '
                       'each, points.Curve.name.')
  twice = {p.label for p in points if points.count(p) > 1}
  if twice:
    raise ValueError(f'{min(twice)} is in the sweep twice; leave one out.')
  if len(points) > MAX_POINTS:
    raise ValueError(f'Got {len(points)} points; allowed: {MAX_POINTS}. Split '
                     'the sweep.')
  return points


def drafts(points: Sequence[Point], curves: Sequence[Curve]
           ) -> list[tuple[str, int, bool]]:
  """Of each point its drafter, draft length, and whether its rule reads q."""
  reads = {rules.label(curve.rule): curve.rule.uses_q for curve in curves
           if curve.rule.__name__ not in rules.BASELINES}
  return [(point.drafter or drafting.NULL, point.gamma,
           reads.get(point.rule, False)) for point in points]


def file_names(points: Mapping[str, Point]) -> dict[str, str]:
  """By content key, labels fit for files; the key tells equal ones apart."""
  names = {key: re.sub(r'[^\w.=+-]+', '_', point.label)
           for key, point in points.items()}
  counts = collections.Counter(names.values())
  return {key: name if counts[name] == 1 else f'{name}_{key[:12]}'
          for key, name in names.items()}


def method_name(rule: Callable[..., Any]) -> str:
  """What people call a rule."""
  lossless = targets.Lossless.__name__
  return 'SpecDecode' if rule.__name__ == lossless else rules.label(rule)
