"""Rules and drafters by name, checked before anything is compiled."""
from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Callable

from spec_cascades import baselines
from spec_cascades import check
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import adaptive
from spec_cascades.drafters import chain
from spec_cascades.drafters import early_exit
from spec_cascades.drafters import jacobi
from spec_cascades.drafters import lookahead
from spec_cascades.drafters import medusa
from spec_cascades.drafters import ngram
from spec_cascades.drafters import null
from spec_cascades.drafters import retrieval
from spec_cascades.drafters import tracking
from spec_cascades.drafters import tree
from spec_cascades.drafters import vertical
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import parts
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
ADAPTIVE, REST, SUBLAYERS = 'adaptive', 'rest', 'sublayers'


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


def adaptive_drafter(pair: pairs.Pair, gamma: int):
  """At most gamma tokens, as many as acceptance and step times make best."""
  drafted, params = chain_drafter(pair, gamma)
  times = pair.parts[ADAPTIVE].params
  cost = times.drafter / times.block(gamma + 1)
  return adaptive.Adaptive(drafted, cost), params


def cascade_drafter(pair: pairs.Pair, gamma: int):
  """CS Drafting, vertically: prompt lookup drafts for the small model."""
  small, params = pair.drafter.lm, pair.drafter.params
  return vertical.Vertical(small, ngram.NGram(gamma), gamma), (params, None)


def tracking_drafter(pair: pairs.Pair, gamma: int):
  """At most gamma tokens, while q is sure by a threshold that adapts."""
  drafted, params = chain_drafter(pair, gamma)
  return tracking.Tracking(drafted), params


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


def tree_drafter(pair: pairs.Pair, gamma: int, path: str = ''):
  """A chain of gamma tokens of the small model, each beside a second choice.

  With a path, the tree that `shapes.write` saved there, whatever gamma is.
  """
  parents = shapes.read(pathlib.Path(path)).parents if path else (
      -1, *(max(2 * i - 1, 0) for i in range(gamma) for _ in range(2)))
  return tree.Tree(pair.drafter.lm, parents), pair.drafter.params


def spectr_drafter(pair: pairs.Pair, gamma: int, chains: int = 3):
  """Chains of gamma tokens of the small model, drawn independently."""
  return spectr.SpecTr(pair.drafter.lm, chains, gamma), pair.drafter.params


def specinfer_drafter(pair: pairs.Pair, gamma: int, path: str):
  """Chains of the pair's small model and of another one, merged."""
  other = pairs.load(path, None)
  if other.vocabulary_sha256 != pair.vocabulary_sha256:
    raise ValueError(f'{path} has another vocabulary than the pair; allowed: a '
                     'drafter with the same one.')
  models = pair.drafter, other.verifier
  made = specinfer.SpecInfer(tuple(model.lm for model in models),
                             (tuple(range(-1, gamma)),) * 2)
  return made, tuple(model.params for model in models)


def counts_drafter(pair: pairs.Pair, gamma: int, path: str):
  """Chains of the table of n-grams that `counted.write` saved at a path."""
  table = counted.read(pathlib.Path(path))
  lm = counts.Counts(pair.verifier.lm.vocab_size, len(table.levels) + 1)
  return chain.Chain(lm, gamma), lm.pack(table)


def rest_drafter(pair: pairs.Pair, gamma: int):
  """Up to gamma tokens that a datastore has behind the text, in a tree."""
  return (retrieval.Retrieval(gamma, nodes=2 * gamma + 1),
          pair.parts[REST].params)


def skip_drafter(pair: pairs.Pair, gamma: int):
  """A third of the verifier's own decoder layers, at even distances."""
  lm, params = pair.verifier.lm, pair.verifier.params
  depth = skip.layers_of(lm)
  lm, params = skip.shallow(lm, params, skip.spread(depth, -(-depth // 3)))
  return chain.Chain(lm, gamma), params


def sublayers_drafter(pair: pairs.Pair, gamma: int):
  """Draft & Verify: the verifier without the sublayers that a search chose."""
  lm = skip.without(pair.verifier.lm, pair.parts[SUBLAYERS].params)
  return tracking.Tracking(chain.Chain(lm, gamma)), pair.verifier.params


def exit_drafter(pair: pairs.Pair, gamma: int):
  """The verifier's first layers, a third of them, on its own cache."""
  lm, params = pair.verifier.lm, pair.verifier.params
  count = -(-skip.layers_of(lm) // 3)
  lm, params = skip.shallow(lm, params, range(count))
  return early_exit.EarlyExit(chain.Chain(lm, gamma), count), params


DRAFTERS = dict(null=null_drafter, chain=chain_drafter,
                adaptive=adaptive_drafter, tracking=tracking_drafter,
                cascade=cascade_drafter,
                tree=tree_drafter, ngram=ngram_drafter, jacobi=jacobi_drafter,
                lookahead=lookahead_drafter, rest=rest_drafter,
                skip=skip_drafter, sublayers=sublayers_drafter,
                exit=exit_drafter)
WITHOUT_Q = ('null', 'ngram', 'jacobi', 'lookahead', 'rest')
WITHOUT_MODEL = (*WITHOUT_Q, 'skip', 'sublayers', 'exit')


def drafter(name: str, pair: pairs.Pair, gamma: int) -> tuple[Any, Any]:
  """A drafter and its parameters; see `check_drafter`."""
  make, path = DRAFTERS[kind(name)], name.partition(':')[2]
  return make(pair, gamma, path) if path else make(pair, gamma)


def check_drafter(name: str, rule: Any, gamma: int) -> None:
  """Raises ValueError for a drafter that does not exist or fit the rule.

  Args:
    name: A key of `DRAFTERS`; those of `WITH_FILE` may be followed by a colon
      and the path of a file.
    rule: A rule, or its class.
    gamma: Tokens drafted a round.
  """
  if kind(name) not in DRAFTERS:
    raise ValueError(f'Unknown drafter {name!r}; allowed: '
                     f'{", ".join(DRAFTERS)}.')
  if kind(name) != name and kind(name) not in WITH_FILE:
    raise ValueError(f'The drafter {name!r} names a file; allowed: for '
                     f'{", ".join(WITH_FILE)}.')
  if name in NEEDED:
    raise ValueError(f'The drafter {name} alone; allowed: {name}:FILE with '
                     f'{NEEDED[name]}.')
  if rule.uses_q and kind(name) in WITHOUT_Q:
    own = rule.__name__ if isinstance(rule, type) else type(rule).__name__
    raise ValueError(f'The rule {own} reads the drafter\'s probabilities, '
                     f'which {name} does not have; take the drafter chain or '
                     'the rule Lossless.')
  if not isinstance(gamma, int) or isinstance(gamma, bool):
    raise ValueError(f'Got gamma={gamma!r}; allowed: whole numbers from 1.')
  check.gamma(gamma)


def check_pair(name: str, pair: pairs.Pair, gamma: int) -> None:
  """Raises ValueError for a drafter that needs what the pair has not."""
  if name in parts.READERS and name not in pair.parts:
    raise ValueError(f'The drafter {name} needs a path to read: --part of '
                     f"decode.py, or parts={{'{name}': ...}} of a sweep.")
  if name not in WITHOUT_MODEL and pair.drafter is None:
    raise ValueError(f'The drafter {name} needs a small model, such as '
                     f'--drafter_dir; or take {", ".join(WITHOUT_MODEL)}.')
  if name == ADAPTIVE:
    pair.parts[name].params.block(gamma + 1)        # was it measured?


def check_sampling(temperature: float, top_p: float, top_k: int = 0) -> None:
  """Raises ValueError for a warp that no distribution has."""
  warp.Warp(temperature, top_k, top_p).validate()
