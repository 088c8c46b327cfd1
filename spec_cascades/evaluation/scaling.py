"""What a token costs as the batch grows, and where speculation stops paying.

A step reads the weights once, for however many rows: with more rows arithmetic
takes over, and drafts, which were free to verify, cost what tokens cost. And a
batch is done when the last of its rows is.
"""
from __future__ import annotations

import dataclasses
from typing import Callable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import theory
from spec_cascades import types
from spec_cascades import verify
from spec_cascades import warp as warp_lib
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import meshes

STEPS = 8                              # dependent calls of a program


@dataclasses.dataclass(frozen=True)
class Cost:
  """Seconds a token, of a batch of so many rows; prompts left out.

  Attributes:
    batch: Rows.
    alone: By the verifier alone.
    drafted: With drafts, until the last row is done.
    refilled: With drafts, where a row that is done makes room for another.
  """
  batch: int
  alone: float
  drafted: float
  refilled: float

  @property
  def speedup(self) -> float:
    """Of drafting, until the last row is done."""
    return self.alone / self.drafted


def slowest(rates: Sequence[float] | np.ndarray, tokens: int,
            batch: int) -> float:
  """Expected rounds until each of `batch` rows has emitted `tokens` tokens.

  sum_k 1 - F(k)^B, F(k) being the probability that one row is done after k
  rounds. Rows are independent; draft i of a round, if those before it were
  accepted, is accepted with probability `rates` [gamma] i.

    slowest([.5], 2, 1)               # 1.5: one round or two
    slowest([.5], 2, 2)               # 1.75

  Raises:
    ValueError: A rate outside [0, 1]; fewer than one token or row.
  """
  rates = np.asarray(rates, np.float64)
  check.interval('Acceptance rate', rates, 0, 1, hint='It is a probability.')
  for name, value in (('tokens', tokens), ('batch', batch)):
    check.interval(name, value, 1, np.inf, whole=True)
  reached = np.concatenate([[1.], np.cumprod(rates)])
  emits = reached - np.append(reached[1:], 0)        # 1, 2, ... gamma + 1
  left = np.zeros(tokens + 1)                        # law of tokens to come
  left[tokens], total = 1., 0.
  for _ in range(tokens):
    total += 1 - left[0]**batch
    after = np.zeros_like(left)
    after[0] = left[0]
    for n, probability in enumerate(emits, 1):
      after[0] += probability * left[1:n].sum()
      after[:max(0, len(left) - n)] += probability * left[n:]
    left = after
  return total


def predicted(times: theory.StepTimes, batch: int,
              rates: Sequence[float] | np.ndarray, tokens: int, *,
              uses_q: bool = False, sampling: float = 0.,
              judging: float = 0.) -> Cost:
  """From the times of steps on `batch` rows: of 1 and gamma + 1 tokens.

  Args:
    times: Seconds of a step of all rows.
    batch: Rows.
    rates: Of each draft of a round, see `slowest`.
    tokens: That each row emits.
    uses_q: Whether the rule reads q at the last node.
    sampling: Seconds to draw a token a row, of the verifier alone.
    judging: Seconds of a round's sampling and acceptance.
  """
  drafts = len(rates) + bool(uses_q)
  one_round = drafts * times.drafter + times.block(len(rates) + 1) + judging
  return Cost(batch, (times.block(1) + sampling) / batch,
              one_round * slowest(rates, tokens, batch) / (tokens * batch),
              one_round / (theory.tokens_of_rates(rates) * batch))


def stops(costs: Iterable[Cost]) -> int | None:
  """The first batch from which on drafting does not pay; None if it does."""
  ordered = sorted(costs, key=lambda x: x.batch)
  paying = [i for i, x in enumerate(ordered) if x.speedup > 1]
  first = paying[-1] + 1 if paying else 0
  return ordered[first].batch if first < len(ordered) else None


@dataclasses.dataclass(frozen=True)
class Measured:
  """Seconds a token of whole decodes less their prompts, and the prediction.

  That is from the times of steps, and of sampling and acceptance.
  """
  cost: Cost
  prediction: Cost
  flatness: float                      # gamma + 1 tokens over one


def measure(verifier: benchmarks.Loaded, drafter: benchmarks.Loaded,
            batches: Sequence[int], *, gamma: int = 5, rate: float = .75,
            tokens: int = 48, runs: int = 5) -> Iterator[Measured]:
  """Decodes each batch alone and with drafts, at a forced acceptance.

  Programs of one batch take turns. `Cost.refilled` is the measured time of a
  round over what a round emits if all rows are busy.

  Args:
    verifier: p.
    drafter: q.
    batches: Rows; on a mesh multiples of its groups.
    gamma: Draft length.
    rate: Every draft is accepted with this probability.
    tokens: That each row emits.
    runs: Of each program.
  """
  rates = np.full(gamma, rate)
  for batch in batches:
    calls = _programs(verifier, drafter, batch, gamma, rate, tokens)
    found = {name: x.median for name, x in
             benchmarks.timed(calls, runs).items()}
    rounds = int(calls['drafted']().stats.rounds.max())
    times = theory.StepTimes(
        {1: found['one'] / STEPS, gamma + 1: found['block'] / STEPS},
        found['drafter'] / STEPS)
    alone = found['alone'] - found['prefill']
    drafted = found['drafted'] - found['prefill'] - found['draft_prefill']
    all_, emitted = tokens * batch, theory.tokens_of_rates(rates) * batch
    yield Measured(
        Cost(batch, alone / all_, drafted / all_, drafted / rounds / emitted),
        predicted(times, batch, rates, tokens,
                  sampling=found['sampling'] / STEPS,
                  judging=found['judging'] / STEPS),
        times.block(gamma + 1) / times.block(1))


def _programs(verifier, drafter, batch, gamma, rate,
              tokens) -> dict[str, Callable[[], jax.Array]]:
  block = lambda model, nodes: benchmarks.block_program(
      model, nodes, steps=STEPS, batch=batch)
  whole = lambda model: benchmarks.decode_program(
      verifier, model, gamma, rate=None if model is None else rate,
      new_tokens=tokens, batch=batch)
  return dict(
      alone=whole(None), drafted=whole(drafter), one=block(verifier, 1),
      block=block(verifier, gamma + 1), drafter=block(drafter, 1),
      sampling=judging_program(verifier, 0, batch=batch),
      judging=judging_program(verifier, gamma, rate=rate, batch=batch),
      prefill=benchmarks.prefill_program(verifier, batch=batch),
      draft_prefill=benchmarks.prefill_program(drafter, batch=batch))


def judging_program(verifier: benchmarks.Loaded, gamma: int, *,
                    rate: float = 0., batch: int = 1
                    ) -> Callable[[], jax.Array]:
  """Sampling and acceptance of `STEPS` rounds, all logits given.

  Greedy and of forced acceptance as the decodes are; without drafts, gamma 0,
  what the verifier alone does for a token.
  """
  p_key, q_key = jax.random.split(jax.random.key(0))
  shape = batch, gamma + 1, verifier.lm.vocab_size
  of_p = 3 * jax.random.normal(p_key, shape)
  of_q = (of_p + jax.random.normal(q_key, shape))[:, :gamma]
  keys, *logits = meshes.rows(verifier.lm, (
      decode.row_keys(0, range(batch)), of_p, of_q))
  judge = verify.Forced(rate) if gamma else verify.Rejection()
  return lambda: _judged(judge, warp_lib.Warp(0.), keys, *logits)


@jax.jit
def _judged(judge, warp, keys, of_p, of_q):
  """Next tokens [B]; a verdict adds next to nothing to the next logits."""
  gamma = of_q.shape[1]

  def body(i, token):
    nudge = 1e-30 * token.astype(jnp.float32)[:, None, None]
    propose, accept = decode.round_keys(keys, jnp.full_like(token, i))
    q, tokens = None, jnp.zeros((len(keys), 0), jnp.int32)
    if gamma:                          # one after the other, as drafters do
      steps = jax.lax.map(lambda step: warp.drawn(*step), (
          jnp.moveaxis(of_q + nudge, 1, 0),
          warp_lib.draws(warp, propose, gamma)))
      q, tokens = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), steps)
      q = jax.tree.map(                # none at the leaf, which nobody reads
          lambda x: jnp.pad(x, ((0, 0), (0, 1), (0, 0))), q)
    draft = types.Draft(
        types.chain(jnp.pad(tokens, ((0, 0), (1, 0)))), q,
        jnp.full_like(token, gamma), 'sampled' if gamma else 'deterministic',
        max_depth=gamma)
    p = warp(of_p + nudge)
    pi = targets.Lossless()(q, p).pi
    return jax.vmap(judge)(accept, draft, p, pi).next_token

  return jax.lax.fori_loop(0, STEPS, body, jnp.zeros(len(keys), jnp.int32))


def lines(found: Iterable[Measured]) -> Iterator[str]:
  """A table, row by row as it is measured, and where drafting stops paying."""
  yield ('     |  us a token, measured       | speed-up           |          '
         'gamma + 1')
  yield (' rows |    alone  drafted refilled | measured predicted | refilled '
         ' tokens over 1')
  done = []
  for x in found:
    done.append(x)
    cost, us = x.cost, lambda y: f'{1e6 * y:8,.0f}'
    yield (f'{cost.batch:5} | {us(cost.alone)} {us(cost.drafted)} '
           f'{us(cost.refilled)} | {cost.speedup:7.2f}x '
           f'{x.prediction.speedup:8.2f}x | {cost.alone / cost.refilled:7.2f}x '
           f'{x.flatness:7.2f}x')
  for name, costs in (
      ('measured', [x.cost for x in done]),
      ('predicted, from steps, sampling and acceptance timed in the same run',
       [x.prediction for x in done])):
    yield f'{name}: {ends(costs)}'


def ends(costs: Sequence[Cost]) -> str:
  """Where drafting stops paying, in words."""
  batch = stops(costs)
  return (f'drafting pays up to {max(x.batch for x in costs)} rows'
          if batch is None else f'drafting does not pay from {batch} rows on')
