"""Rules and drafters by name, checked before anything is compiled."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable

from spec_cascades import baselines
from spec_cascades import check
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import chain
from spec_cascades.drafters import jacobi
from spec_cascades.drafters import lookahead
from spec_cascades.drafters import ngram
from spec_cascades.drafters import null
from spec_cascades.drafters import tree
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.models import skip

RULES = {rule.__name__: rule for rule in (
    targets.Lossless, targets.Lossy, targets.LossyBeta, targets.LossyBudget,
    targets.Ensemble, targets.Chow, targets.Diff, targets.OPT, targets.ChowLog,
    targets.DiffLog, targets.OPTLog, targets.BiLD, targets.Lenience,
    targets.TokenV1, targets.TokenV2, targets.TokenV3, targets.TruncatedTopP,
    targets.TruncatedMinP, targets.TruncatedEta)}
BASELINES = {rule.__name__: rule for rule in (
    baselines.SeqCascade, baselines.TokenCascade, baselines.OracleCascade,
    baselines.OriginalBiLD)}
CHAIN, NULL = 'chain', 'null'


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


def drafting(rule: Callable[..., Any], name: str, gamma: int
             ) -> tuple[str, int]:
  """Drafter and draft length of a curve; a baseline has its own.

  Raises:
    ValueError: They don't exist or don't fit the rule.
  """
  check_drafter(name, rule, gamma)
  if rule.__name__ not in BASELINES:
    return name, gamma
  if name != CHAIN:
    raise ValueError(f'{rule.__name__} asks the small model itself, but got '
                     f'the drafter {name}; leave it out.')
  return CHAIN, rule().length


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


def null_drafter(pair: pairs.Pair, gamma: int):
  """Plain autoregression."""
  del pair, gamma
  return null.Null(), None


def chain_drafter(pair: pairs.Pair, gamma: int):
  """The pair's small model drafts gamma tokens."""
  return chain.Chain(pair.drafter.lm, gamma), pair.drafter.params


def ngram_drafter(pair: pairs.Pair, gamma: int, order: int = 2):
  """Prompt lookup: what followed the last `order` tokens before."""
  del pair
  return ngram.NGram(gamma, order), None


def jacobi_drafter(pair: pairs.Pair, gamma: int):
  """The verifier's own answers to gamma guesses of the round before."""
  del pair
  return jacobi.Jacobi(gamma), None


def lookahead_drafter(pair: pairs.Pair, gamma: int):
  """n-grams of gamma + 1 tokens that the verifier made in earlier rounds."""
  size = pair.verifier.lm.vocab_size
  return lookahead.Lookahead(size, window=5, order=gamma + 1, guesses=5), None


def tree_drafter(pair: pairs.Pair, gamma: int):
  """A chain of gamma tokens of the small model, each beside a second choice."""
  spine = (-1, *(max(2 * i - 1, 0) for i in range(gamma) for _ in range(2)))
  return tree.Tree(pair.drafter.lm, spine), pair.drafter.params


def skip_drafter(pair: pairs.Pair, gamma: int):
  """A third of the verifier's own decoder layers, at even distances."""
  lm, params = meshes.bare(pair.verifier.lm), pair.verifier.params
  depth = skip.layers_of(lm)
  lm, params = skip.shallow(lm, params, skip.spread(depth, -(-depth // 3)))
  on = meshes.layout_of(pair.verifier.lm)
  return chain.Chain(meshes.placed(lm, on), gamma), params


DRAFTERS = dict(null=null_drafter, chain=chain_drafter, tree=tree_drafter,
                ngram=ngram_drafter, jacobi=jacobi_drafter,
                lookahead=lookahead_drafter, skip=skip_drafter)
WITHOUT_Q = ('null', 'ngram', 'jacobi', 'lookahead')
WITHOUT_MODEL = (*WITHOUT_Q, 'skip')


def drafter(name: str, pair: pairs.Pair, gamma: int) -> tuple[Any, Any]:
  """A drafter and its parameters; see `check_drafter`."""
  return DRAFTERS[name](pair, gamma)


def check_drafter(name: str, rule: Any, gamma: int) -> None:
  """Raises ValueError for a drafter that does not exist or fit the rule.

  Args:
    name: A key of `DRAFTERS`.
    rule: A rule, or its class.
    gamma: Tokens drafted a round.
  """
  if name not in DRAFTERS:
    raise ValueError(f'Unknown drafter {name!r}; allowed: '
                     f'{", ".join(DRAFTERS)}.')
  if rule.uses_q and name in WITHOUT_Q:
    kind = rule.__name__ if isinstance(rule, type) else type(rule).__name__
    raise ValueError(f'The rule {kind} reads the drafter\'s probabilities, '
                     f'which {name} does not have; take the drafter chain or '
                     'the rule Lossless.')
  if not isinstance(gamma, int) or isinstance(gamma, bool):
    raise ValueError(f'Got gamma={gamma!r}; allowed: whole numbers from 1.')
  check.gamma(gamma)


def check_pair(name: str, pair: pairs.Pair) -> None:
  """Raises ValueError for a drafter that needs a small model there is not."""
  if name not in WITHOUT_MODEL and pair.drafter is None:
    raise ValueError(f'The drafter {name} needs a small model, such as '
                     f'--drafter_dir; or take {", ".join(WITHOUT_MODEL)}.')


def check_sampling(temperature: float, top_p: float, top_k: int = 0) -> None:
  """Raises ValueError for a warp that no distribution has."""
  warp.Warp(temperature, top_k, top_p).validate()
