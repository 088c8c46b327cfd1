"""Transformers across batch sizes and padding: equal, or a near-tie apart.

Matrix products of other shapes round differently. Where a row's tokens first
differ, its round is decided again from what either run saw and from the row's
own key: that must give what the run gave, so that nothing but rounding is left,
and what tipped must have been within 1e-4 of the other answer.
"""
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import decode, targets, types, verify
from spec_cascades import warp as warp_lib
from spec_cascades.drafters.chain import Chain
from spec_cascades.models import t5
from tests.common import keys, select
from tests.models import tiny

ROWS, WIDTH, GAMMA, NEAR = 12, 9, 3, 1e-4
MODELS = pytest.mark.parametrize('name', [
    'gemma3', *(pytest.param(name, marks=pytest.mark.slow)
                for name in ('t5_1_1', 'llama3'))])
RULES = pytest.mark.parametrize('rule,temperature', [
    pytest.param(targets.Lossless(), 0., id='lossless-greedy'),
    pytest.param(targets.Lossless(), 1., id='lossless',
                 marks=pytest.mark.slow),
    pytest.param(targets.Ensemble(.4), 1., id='ensemble',   # reads q
                 marks=pytest.mark.slow)])
DRAW = np.random.default_rng(3)
TOKENS = DRAW.integers(1, tiny.VOCAB, (ROWS, WIDTH))
LENGTHS = np.arange(ROWS) % WIDTH + 1
INPUTS = np.where(np.arange(WIDTH) < LENGTHS[::-1, None], TOKENS[::-1], 0)


def shaken(params, size, seed=1):
  """Parameters with relative noise."""
  leaves, structure = jax.tree.flatten(params)
  many = jax.random.split(jax.random.key(seed), len(leaves))
  return structure.unflatten([
      x * (1 + size * jax.random.normal(k, x.shape))
      for x, k in zip(leaves, many)])


def prompts(lm):
  return types.Prompt(jnp.asarray(TOKENS), jnp.asarray(LENGTHS),
                      jnp.asarray(INPUTS) if isinstance(lm, t5.T5) else None)


def wider(prompt):
  """The same rows with more padding."""
  pad = lambda x: None if x is None else jnp.pad(x, ((0, 0), (0, 6)))
  return types.Prompt(pad(prompt.prefix), prompt.prefix_lengths,
                      pad(prompt.inputs))


def rounds(name, prompt, row_keys, rule, temperature, noise=0.):
  """Every round of a decode, with what it saw."""
  lm = tiny.LMS[name]
  plain = tiny.params_of(lm)
  spec = decode.GenSpecSample(lm, Chain(lm, GAMMA), 48, eos=-1)
  return rounds_of(
      spec, lm.pack(shaken(plain, noise)), lm.pack(shaken(plain, .3)), prompt,
      row_keys, rule, warp_lib.Warp(jnp.float32(temperature)))


def rounds_of(*given):
  """The same of the arguments of `decode.stream`."""
  out = []
  for done in decode.stream(*given):
    seen = jax.device_get((done.feedback.draft, done.feedback.logits))
    out.append((done.tokens, *seen))
  return out


def gap(logits):
  """Between the two best."""
  second, best = np.sort(np.asarray(logits))[-2:]
  return best - second


def drawn_apart(laws, key):
  """How near the uniform that drew another token was to either law's edge."""
  width = warp_lib._width(len(laws[0]))
  blocks = [np.pad(x, (0, -len(x) % width)).reshape(-1, width) for x in laws]
  places = [int(warp_lib.sample(jnp.asarray(x), key)) for x in laws]
  stage = 1
  if len({place // width for place in places}) > 1:
    stage, masses = 0, [x.sum(1) for x in blocks]
    places = [place // width for place in places]
  else:
    masses = [x[place // width] for x, place in zip(blocks, places)]
    places = [place % width for place in places]
  uniform = float(jax.random.uniform(key, (2,))[stage])
  edges = [x.cumsum()[min(places)] / x.sum() for x in masses]
  return max(abs(uniform - edge) for edge in edges)


def margin(found, row_key, number, rule, temperature):
  """How near the first decision that tipped was to the other answer.

  That is the gap between the two best logits at temperature 0, else the
  distance of the uniform from its threshold.

  Args:
    found: Two runs' (tokens, draft, logits) of one row in round `number`.
  """
  propose, judge = (key[0] for key in decode.round_keys(
      row_key[None], jnp.array([number])))
  warp = warp_lib.Warp(temperature)
  children = np.stack([np.asarray(x.tree.tokens) for _, x, _ in found])
  laws = np.stack([np.asarray(x.prediction.probs) for _, x, _ in found])
  for i in range(GAMMA):
    key = jax.random.fold_in(propose, i)
    for law, tokens in zip(laws, children):      # each as its own law has it
      assert warp_lib.sample(jnp.asarray(law[i]), key) == tokens[i + 1]
    if len(set(children[:, i + 1])) > 1:
      return (drawn_apart(laws[:, i], key) if temperature else
              min(gap(x.prediction.logits[i]) for _, x, _ in found))
  chances, counts, left = [], [], []
  for tokens, draft, logits in found:
    own = rule(jax.tree.map(lambda x: x[None], draft.prediction),
               warp(logits[None])).pi[0]
    p = jax.tree.map(lambda x: x[0], warp(logits[None]))
    verdict = verify.Rejection()(judge, draft, p, own)
    count = int(verdict.count)
    new = [*draft.tree.tokens[1:count + 1], verdict.next_token]
    assert [int(x) for x in new[:len(tokens)]] == tokens.tolist()
    of_pi, of_q = verify.drawn(draft, own)
    chances.append(np.minimum(of_pi / of_q, 1))
    counts.append(count)
    left.append(np.asarray(verify.left_after(draft, own, count)))
  node = min(counts)
  if not temperature:
    return min(gap(logits[node]) for *_, logits in found)
  if len(set(counts)) > 1:
    uniform = jax.random.uniform(jax.random.split(judge)[0], (GAMMA + 1,))
    return max(abs(float(uniform[node + 1] - x[node])) for x in chances)
  return drawn_apart(left, jax.random.split(judge)[1])


def first_margin(one, other, row, row_key, rule, temperature):
  """None if all tokens of a row agree; `other` holds (run, its row)."""
  run, own = other
  for number, (a, b) in enumerate(zip(one, run)):
    if not np.array_equal(a[0][row], b[0][own]):
      pick = lambda x, i: (
          x[0][i], *jax.tree.map(lambda y: jnp.asarray(y[i]), x[1:]))
      return margin((pick(a, row), pick(b, own)), row_key, number, rule,
                    temperature)
  return None


def margins(name, rule, temperature, noise=0.):
  """Where rows differ: alone, in twice the batch, and with more padding."""
  prompt, row_keys = prompts(tiny.LMS[name]), keys(ROWS)
  run = lambda given, k, **more: rounds(name, given, k, rule, temperature,
                                        **more)
  one = run(prompt, row_keys)
  twice = np.tile(np.arange(ROWS), 2)
  big = run(select(prompt, twice), row_keys[twice], noise=noise)
  padded = run(wider(prompt), row_keys)
  others = [[(big, row + ROWS), (padded, row)] for row in range(ROWS)]
  for row in range(0, ROWS, 4):
    at = slice(row, row + 1)
    others[row].append((run(select(prompt, at), row_keys[at]), 0))
  found = [first_margin(one, other, row, row_keys[row], rule, temperature)
           for row in range(ROWS) for other in others[row]]
  return len(found), [x for x in found if x is not None]


@MODELS
@RULES
def test_rows_agree_or_differ_at_a_near_tie(name, rule, temperature):
  pairs, apart = margins(name, rule, temperature)
  print(f'{name} at temperature {temperature}: {pairs} pairs of a row, '
        f'{len(apart)} differ, margins {apart}')
  assert pairs == 2 * ROWS + 3 and all(x < NEAR for x in apart)


@MODELS
@RULES
def test_another_model_is_more_than_a_near_tie_apart(name, rule, temperature):
  """The control: in the larger batch p has 10 % of noise."""
  _, apart = margins(name, rule, temperature, noise=.1)
  assert apart and max(apart) > NEAR
