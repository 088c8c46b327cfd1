"""Rules by name, checked before anything is compiled."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Iterable

import jax

from spec_cascades import baselines
from spec_cascades import check
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
  """A rule's name, and the options that are not its defaults.

  SeqCascade(normalised=False), say. Alpha is none of them.
  """
  name, made = rule.__name__, rule()
  given = [(f.name, getattr(made, f.name)) for f in dataclasses.fields(rule)
           if f.name != 'alpha' and getattr(made, f.name) != f.default]
  options = [f'{field}={getattr(x, "__name__", x)}' for field, x in given]
  return f'{name}({", ".join(options)})' if options else name


def check_class(rule: Any) -> None:
  """Raises ValueError for what is no class of rules that a sweep can run."""
  if not isinstance(rule, type):
    raise ValueError(f'Got rule={rule!r}; allowed: a class, such as '
                     '@targets.Chow in gin.')
  if issubclass(rule, targets.Choice):
    raise ValueError('Got rule=Choice; allowed: one rule. Give each of several '
                     'a curve of its own.')
  if lacking := _lacking(rule):
    raise ValueError(
        f'Got rule={rule.__name__}, which has no {lacking}; allowed: a class '
        'of spec_cascades.targets or baselines, or one like them, see "Adding '
        'a rule" in README.md.')


def _lacking(rule: type) -> str:
  """What a rule has to have and this class has not, or ''."""
  if type(getattr(rule, 'uses_q', None)) is not bool:
    return 'uses_q of True or False'
  if not dataclasses.is_dataclass(rule):
    return '@struct.dataclass'
  try:
    made = rule()
  except TypeError:
    return 'default for each of its fields'
  if jax.tree_util.all_leaves([made]):
    return '@struct.dataclass of spec_cascades'
  check.told_apart(made)
  if type(made) in BASELINES.values():
    return ''
  if not callable(made):
    return '__call__'
  needed = ('validate', 'domain') if takes_alpha(rule) else ('validate',)
  return next((name for name in needed if not hasattr(rule, name)), '')


def check_names(rules: Iterable[Callable[..., Any]]) -> None:
  """Raises ValueError where a name, which is all that results say, is of two.

  What gin makes of a class is a class, too; its instances are of the first.
  """
  known = {**RULES, **BASELINES}
  for own in (type(rule()) for rule in rules):
    other = known.setdefault(own.__name__, own)
    if other is not own:
      raise ValueError(f'Got two rules named {own.__name__}, of '
                       f'{other.__module__} and {own.__module__}; allowed: a '
                       'name for each. Rename a class.')


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
