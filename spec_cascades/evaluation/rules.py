"""Rules by name, checked before anything is compiled."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable

from spec_cascades import baselines
from spec_cascades import targets
from spec_cascades import warp

RULES = {rule.__name__: rule for rule in (
    targets.Lossless, targets.Lossy, targets.LossyBeta, targets.LossyBudget,
    targets.Ensemble, targets.Chow, targets.Diff, targets.OPT, targets.ChowLog,
    targets.DiffLog, targets.OPTLog, targets.BiLD, targets.Lenience,
    targets.TokenV1, targets.TokenV2, targets.TokenV3, targets.TruncatedTopP,
    targets.TruncatedMinP, targets.TruncatedEta)}
BASELINES = {rule.__name__: rule for rule in (
    baselines.SeqCascade, baselines.TokenCascade, baselines.OracleCascade,
    baselines.OriginalBiLD)}


def takes_alpha(rule: Callable[..., Any]) -> bool:
  """Whether a rule has a threshold."""
  return any(f.name == 'alpha' for f in dataclasses.fields(rule))


def label(rule: Callable[..., Any]) -> str:
  """A rule's name; of a baseline also the options that are not its defaults.

  SeqCascade(normalised=False), say. They are compiled in.
  """
  name = rule.__name__
  if name not in BASELINES:
    return name
  made = rule()
  given = [(f.name, getattr(made, f.name)) for f in dataclasses.fields(rule)
           if f.name != 'alpha' and getattr(made, f.name) != f.default]
  options = [f'{field}={getattr(x, "__name__", x)}' for field, x in given]
  return f'{name}({", ".join(options)})' if options else name


def check_heat(rule: Callable[..., Any], temperature: float) -> None:
  """Raises ValueError for a temperature that a rule is not defined for."""
  if rule.__name__ in BASELINES and rule.greedy:
    baselines.check_greedy(rule.__name__, temperature)


def check_alpha(rule: Callable[..., Any], alpha: float | None) -> None:
  """Raises ValueError for an alpha that a rule does not take."""
  name = rule.__name__
  if not takes_alpha(rule):
    if alpha is not None:
      raise ValueError(f'{name} takes no alpha, but got {alpha}; leave it out.')
  elif alpha is None:
    raise ValueError(f'{name} needs an alpha; allowed: {rule.domain[0]:g} to '
                     f'{rule.domain[1]:g}.')
  else:
    rule(alpha=alpha).validate()


def make(name: str, alpha: float | None) -> Any:
  """The rule of that name; alpha is its own default if None.

  Raises:
    ValueError: Unknown rule, or an alpha that it does not take.
  """
  if name not in RULES:
    raise ValueError(f'Unknown rule {name!r}; allowed: {", ".join(RULES)}.')
  rule = RULES[name]
  if alpha is None:
    return rule()
  check_alpha(rule, alpha)
  return rule(alpha=alpha)


def check_sampling(temperature: float, top_p: float, top_k: int = 0) -> None:
  """Raises ValueError for a warp that no distribution has."""
  warp.Warp(temperature, top_k, top_p).validate()
