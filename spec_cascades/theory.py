"""Expected tokens and speed-up of chains, without running a decode.

In the notation of the references: a an acceptance rate, g the draft length
gamma, c the time of a drafter step over that of a verifier step, t_q and t_p(w)
the seconds of a drafter step and of a verifier call on a block of w tokens.
All numbers are NumPy float64. Everything holds for chains verified token by
token (`verify.Rejection`), not for trees or block verification; prompts and the
sampling itself are left out.

    times = StepTimes({1: 10e-3, 4: 12e-3}, drafter=1e-3)
    speedup(expected_tokens(.8, 3), 3, times, uses_q=False)     # 1.97
"""
from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from spec_cascades import check
from spec_cascades import stats

# Acceptance of one text [T], or of each of several; of any lengths.
Texts = Sequence[float] | Sequence[Sequence[float]] | np.ndarray


def expected_tokens(rate: float, gamma: int) -> float:
  """Tokens a round, i.i.d. acceptance: (1 - a^(g + 1)) / (1 - a).

  Reference: Leviathan et al. (2023), eq. 1, https://arxiv.org/abs/2211.17192
  """
  return tokens_of_rates(np.full(_draft_length(gamma), rate))


def tokens_of_rates(rates: Sequence[float] | np.ndarray) -> float:
  """Tokens a round: 1 + r_0 + r_0 r_1 + ... + r_0 ... r_{g-1}.

  `rates` [gamma] are of each draft of a round, given that those before it were
  accepted. They belong to the rule and gamma they were measured under; the
  first few of them for a shorter draft are an approximation. ValueError for a
  rate outside [0, 1].
  """
  rates = np.asarray(rates, np.float64)
  check.interval('Acceptance rate', rates, 0, 1, hint='It is a probability.')
  return float(1 + np.cumprod(rates).sum())


def analytic_speedup(tokens_per_round: float, *, verifier_one: float,
                     verifier_block: float, drafter_steps: int,
                     drafter_one: float) -> float:
  """E[tokens] t_p(1) / (d t_q + t_p(g + 1)), from measured step times.

  The general form of Leviathan et al. (2023), sec. 3.3: verification need not
  be flat, and d is gamma for rules that ignore q, gamma + 1 for the others.
  """
  return tokens_per_round * verifier_one / (
      drafter_steps * drafter_one + verifier_block)


def walltime_factor(rates: float | Sequence[float] | np.ndarray, gamma: int,
                    cost: float, *, uses_q: bool = False) -> float:
  """Speed-up where scoring g + 1 tokens takes as long as scoring one.

  (1 - a^(g + 1)) / ((1 - a) (g c + 1)); rules that use q take (g + 1) c + 1.

  Args:
    rates: The i.i.d. acceptance rate, or those by position, [gamma].
    gamma: Draft length.
    cost: c, a drafter step's time over a verifier step's.
    uses_q: Whether the rule needs q at the last node.

  Raises:
    ValueError: A rate outside [0, 1], another number of rates than gamma, a
      cost or a gamma below 0.

  Reference: Leviathan et al. (2023), thm. 3.8, https://arxiv.org/abs/2211.17192
  """
  check.interval('cost', cost, 0, np.inf, hint='It is a ratio of times.')
  return analytic_speedup(
      _tokens(rates, gamma), verifier_one=1.0, verifier_block=1.0,
      drafter_steps=_drafter_steps(gamma, uses_q), drafter_one=cost)


def operations_factor(rates: float | Sequence[float] | np.ndarray, gamma: int,
                      cost: float, *, uses_q: bool = False) -> float:
  """Arithmetic per token, relative to the verifier alone.

  (1 - a) (g c^ + g + 1) / (1 - a^(g + 1)); rules that use q take (g + 1) c^ for
  g c^. c^, `cost`, is the drafter's operations per token over the verifier's.

  Args:
    rates: The i.i.d. acceptance rate, or those by position, [gamma].
    gamma: Draft length.
    cost: c^.
    uses_q: Whether the rule needs q at the last node.

  Raises:
    ValueError: A rate outside [0, 1], another number of rates than gamma, a
      cost or a gamma below 0.

  Reference: ibid., thm. 3.11
  """
  check.interval('cost', cost, 0, np.inf, hint='It is a ratio of operations.')
  return (_drafter_steps(gamma, uses_q) * cost + gamma + 1) / _tokens(
      rates, gamma)


@dataclasses.dataclass(frozen=True)
class StepTimes:
  """What steps cost, in seconds or any other unit that both share.

  Attributes:
    verifier: Time of a verifier call by width of its block in tokens; width 1
      must be among them. Widths between two measured ones are interpolated.
    drafter: Time of a drafter step.
  """
  verifier: Mapping[int, float]
  drafter: float

  def __post_init__(self):
    widths, times = list(self.verifier), list(self.verifier.values())
    check.interval('Width of a block', widths, 1, np.inf)
    check.interval('Time of a block', times, 0, np.inf, above=True)
    check.interval('Time of a drafter step', self.drafter, 0, np.inf)
    if 1 not in widths:
      raise ValueError(f'Got verifier times of the widths {sorted(widths)}; '
                       'width 1 must be among them: speed-ups are over it.')

  def block(self, width: int) -> float:
    """t_p(width); ValueError outside the measured widths."""
    widths = sorted(self.verifier)
    if not widths[0] <= width <= widths[-1]:
      raise ValueError(f'A block of {width} tokens; verifier times are known '
                       f'from {widths[0]} to {widths[-1]}: measure it, or '
                       'draft less.')
    return float(np.interp(width, widths, [self.verifier[w] for w in widths]))


def speedup(tokens: float, gamma: int, times: StepTimes, *,
            uses_q: bool) -> float:
  """E[tokens] t_p(1) / (d t_q + t_p(g + 1)), `tokens` being emitted a round.

  d is gamma for rules that ignore q, gamma + 1 for those that use it; no drafts
  at all, gamma = 0, take no drafter.

  Raises:
    ValueError: A gamma below 0, or of a block wider than the measured ones.
  """
  steps = _drafter_steps(gamma, uses_q)
  return analytic_speedup(
      tokens, verifier_one=times.block(1), drafter_steps=steps,
      verifier_block=times.block(gamma + 1), drafter_one=times.drafter)


def break_even(times: StepTimes, *, uses_q: bool) -> float:
  """The acceptance rate above which a draft of one token pays.

  (d t_q + t_p(2)) / t_p(1) - 1 with d = 1, or 2 for rules that use q: c or 2 c
  where t_p is flat. At rates up to c no gamma pays either; in the other cases a
  longer draft may pay earlier. Above 1 means never.

  Reference: Leviathan et al. (2023), cor. 3.9, https://arxiv.org/abs/2211.17192
  """
  return 1 / speedup(1.0, 1, times, uses_q=uses_q) - 1


def best_gamma(factor: Callable[[int], float],
               max_gamma: int) -> tuple[int, float]:
  """The shortest draft with the greatest speed-up, and that speed-up.

    best_gamma(lambda g: walltime_factor(.8, g, .05), 16)       # 8, 3.09

  Drafts of 1 to max_gamma tokens are tried; (0, 1.0), no drafting, is the
  answer if none beats 1. ValueError for a max_gamma below 1.
  """
  if max_gamma < 1:
    raise ValueError(f'Nothing to try up to gamma {max_gamma}; allowed: 1 or '
                     'more, with times of blocks and rates that reach it.')
  factors = [1.0] + [factor(gamma) for gamma in range(1, max_gamma + 1)]
  best = int(np.argmax(factors))
  return best, float(factors[best])


def pipelined(rate: float, choices: int, fraction: float,
              tokens: int) -> tuple[float, float]:
  """Expected latency and compute of pipelined decoding, in verifier passes.

  L = T - (1 - f) (T - 1) r   and   C = T + (1 - f) (T - 1) (k - r)

  At a fraction f of the layers k tokens are named, and as many devices start
  the next pass from them. Where one is right, 1 - f of that pass is done when
  this one ends; the others did as much in vain. Exact however matches depend on
  one another; C / L devices are busy on average. On one device, where k starts
  are one block: `analytic_speedup` of 1 + r tokens, one drafter step being f.

    pipelined(.8, 3, .5, 101)         # 61.0, 211.0

  Args:
    rate: r, how often the token is among those named.
    choices: k.
    fraction: f, from 1/2 on: under it a start would itself name tokens before
      it is known whether it was right.
    tokens: T, of the text; the last one is followed by none.

  Raises:
    ValueError: A number outside its domain.

  Reference: Yang et al. (2023), https://arxiv.org/abs/2307.05908
  """
  check.interval('Match rate', rate, 0, 1, hint='It is a probability.')
  check.interval('fraction', fraction, .5, 1, hint='Name tokens higher up.')
  for name, value in (('choices', choices), ('tokens', tokens)):
    check.interval(name, value, 1, np.inf, whole=True)
  saved = (1 - fraction) * (tokens - 1)
  return tokens - saved * rate, tokens + saved * (choices - rate)


def round_starts(accept: Sequence[float] | np.ndarray,
                 gamma: int) -> np.ndarray:
  """Probability that a round starts at each token of a text: [..., T].

  A round that accepts k drafts from t on is followed by one at t + k + 1, its
  correction or bonus being token t + k. Exact: a Markov chain over the drafts
  that the round has accepted so far.

    round_starts([.5, .5, .5], 1)     # [1, .5, .75]

  Token 1 starts a round if 0 was rejected (.5); token 2 if 1 was a bonus (.5)
  or was rejected (.25).

  Args:
    accept: [..., T], the probability that a token is accepted if the round
      drafts it: min(1, q(y_t) / pi(y_t)) from a teacher-forced pass over a text
      that the rule itself has written; q after the sampling transform.
    gamma: Draft length; 0 starts a round at every token.

  Raises:
    ValueError: A probability outside [0, 1], or a gamma below 0.
  """
  return round_starts_by_depth(
      np.asarray(accept)[..., None] * np.ones(_draft_length(gamma)))


def round_starts_by_depth(accept: np.ndarray) -> np.ndarray:
  """The same where acceptance depends on how far a round has come: [..., T].

  As with EAGLE. accept: [..., T, gamma], that token t is accepted by a round
  with k drafts before it; [[.5, 0], [1, .5], [1, 1]] gives [1, .5, .25].
  """
  accept = np.asarray(accept, np.float64)
  check.interval('Probability of acceptance', accept, 0, 1)
  state = np.zeros((*accept.shape[:-2], accept.shape[-1] + 1))
  state[..., 0] = 1                                   # [..., drafts so far]
  starts = np.empty(accept.shape[:-1])
  for t in range(accept.shape[-2]):
    starts[..., t] = state[..., 0]
    grown = state[..., :-1] * accept[..., t, :]
    ended = state[..., -1] + (state[..., :-1] - grown).sum(-1)
    state = np.concatenate([ended[..., None], grown], -1)
  return starts


def expected_rounds(accept: Texts, gamma: int) -> np.ndarray:
  """Verifier calls that each text takes, in expectation: [texts].

  A text starts with a round, and its last token ends one. `accept` is [T], or a
  sequence of such arrays of any lengths; for the rest see `round_starts`.
  ValueError if there is no token at all.
  """
  texts = _texts(accept)
  lengths = np.array([len(text) for text in texts])
  own = np.arange(lengths.max()) < lengths[:, None]
  padded = np.zeros(own.shape)
  padded[own] = np.concatenate(texts)
  return np.where(own, round_starts(padded, gamma), 0).sum(1)


def tokens_per_call(accept: Texts, gamma: int) -> float:
  """Predicted decoded tokens per verifier call: a ratio of sums over texts.

  Unlike `expected_tokens` it knows that acceptance varies along a text and that
  the last round is cut. Arguments and errors are those of `expected_rounds`.
  """
  rounds = expected_rounds(accept, gamma).sum()
  return float(sum(len(text) for text in _texts(accept)) / rounds)


def _texts(accept) -> list[np.ndarray]:
  """One text or several, as several."""
  single = len(accept) > 0 and np.ndim(accept[0]) == 0
  texts = [np.asarray(x, np.float64) for x in ([accept] if single else accept)]
  if not sum(text.size for text in texts):
    raise ValueError(f'Got {len(texts)} texts without a token; give the '
                     'acceptance of at least one token.')
  return texts


@dataclasses.dataclass(frozen=True)
class Plan:
  """What to run a rule with, and what to expect.

  If gamma is max_gamma, a draft longer than was tried may be better.
  """
  rule: str
  gamma: int                     # 0 for no drafting
  tokens: float                  # expected, a verifier call
  speedup: float                 # over the verifier alone
  max_gamma: int                 # the longest draft tried


ESTIMATES = ('rate', 'rates', 'histogram', 'texts')
NEEDED = ('drafter', 'uses_q', 'verifier')


def plan(rules: Mapping[str, Mapping[str, Any]], costs: Mapping[str, Any],
         max_gamma: int | None = None) -> list[Plan]:
  """The best gamma of each rule and its predicted speed-up, fastest first.

  Takes what a JSON file may hold; rules of equal speed keep their order:

    plan({'Lossless': {'uses_q': False, 'rate': .7},
          'Chow': {'uses_q': True, 'histogram': [20, 9, 31], 'corrected': 28}},
         {'verifier': {'1': .010, '6': .013}, 'drafter': .001})

  Args:
    rules: Of each, `uses_q` and one estimate of acceptance: an i.i.d. `rate`,
      `rates` [gamma] by position, a `histogram` [gamma + 1] and, if known,
      `corrected` (see `stats.rates_by_position`), or `texts` (see
      `tokens_per_call`).
    costs: `verifier`, the time of a block by its width, and `drafter`, that of
      a step, see `StepTimes`; a rule may have its own of either.
    max_gamma: Longest draft to try; None for as long as the measured blocks
      and, for rates and histograms, the positions with an estimate allow. They
      limit it in any case: `Plan.max_gamma` tells.

  Raises:
    ValueError: Something is missing, unknown, given twice, or outside what it
      may be; the message names the rule.
  """
  plans = []
  for name, rule in rules.items():
    try:
      plans.append(_plan(name, {**costs, **rule}, max_gamma))
    except ValueError as error:
      raise ValueError(f'Rule {name!r}: {error}') from error
  return sorted(plans, key=lambda x: -x.speedup)


def _plan(name: str, data: Mapping[str, Any], max_gamma: int | None) -> Plan:
  given = [key for key in ESTIMATES if key in data]
  known = {*NEEDED, *given, *['corrected'] * ('histogram' in given)}
  if len(given) != 1 or not set(NEEDED) <= set(data) <= known:
    raise ValueError(f'Got {", ".join(sorted(data))}; allowed: '
                     f'{", ".join(NEEDED)} and one of {", ".join(ESTIMATES)}, '
                     'corrected next to histogram only.')
  times = StepTimes({int(w): t for w, t in data['verifier'].items()},
                    data['drafter'])
  tokens, longest = _estimate(data)
  limits = max(times.verifier) - 1, longest, max_gamma
  limit = min(x for x in limits if x is not None)
  gamma, factor = best_gamma(
      lambda g: speedup(tokens(g), g, times, uses_q=data['uses_q']), limit)
  return Plan(name, gamma, tokens(gamma), factor, limit)


def _estimate(data) -> tuple[Callable[[int], float], int | None]:
  """Tokens a round as a function of gamma, and where that function ends."""
  if 'rate' in data:
    return functools.partial(expected_tokens, data['rate']), None
  if 'texts' in data:
    return functools.partial(tokens_per_call, data['texts']), None
  rates = data['rates'] if 'rates' in data else stats.rates_by_position(
      data['histogram'], data.get('corrected'))
  rates = np.asarray(rates, np.float64)
  if 'histogram' in data:
    rates = rates[~np.isnan(rates)]         # past them nobody got
  return lambda gamma: tokens_of_rates(rates[:gamma]), len(rates)


def _tokens(rates, gamma: int) -> float:
  """Tokens a round, of an i.i.d. rate or of rates by position."""
  if np.ndim(rates) == 0:
    return expected_tokens(rates, gamma)
  if len(rates) != _draft_length(gamma):
    raise ValueError(f'{len(rates)} acceptance rates for a gamma of {gamma}; '
                     'allowed: one, or one a position.')
  return tokens_of_rates(rates)


def _draft_length(gamma: int) -> int:
  """gamma, unless it is negative; 0 is the verifier alone."""
  if gamma < 0:
    raise ValueError(f'A draft length (gamma) of {gamma}; allowed: 0 or more.')
  return gamma


def _drafter_steps(gamma: int, uses_q: bool) -> int:
  """d: rules that use q need it at the last node too, if there are drafts."""
  return _draft_length(gamma) + bool(uses_q and gamma)
