"""A drafter that learns while it drafts: what it is trained on is exact."""
import dataclasses

import jax
import numpy as np
import pytest

import tinypair
from spec_cascades.evaluation import timing
from spec_cascades.models import t5
from spec_cascades.training import online as online_lib
from spec_cascades.training import optimizers
from spec_cascades.training import train_step
from spec_cascades.training import writing
from tests.models import tiny
from training.runs import SIZES

GAMMA = 3
ONLINE = online_lib.Online(every=6, batch=4, size=12, rows=8, gamma=GAMMA,
                           window=10)


def session_of(corpus, lm, online=ONLINE):
  """A session of random models, and the parameters of both.

  The drafter is near the verifier, so that it is right in part.
  """
  near = .5 if type(lm) is t5.T5 else .9
  guide, other = (lm.init_params(jax.random.key(i)) for i in (0, 1))
  guide['decoder']['decoder_norm']['scale'] *= 3.
  params = jax.tree.map(lambda a, b: near * a + (1 - near) * b, guide, other)
  update = train_step.Update(lm, optimizers.adafactor(.1), teacher=lm)
  return online_lib.Session(online, update, guide, corpus, steps=9,
                            max_length=17), params, guide


def decoder():
  lm = tiny.LMS['llama3']
  return type(lm)(dataclasses.replace(lm.config, vocab_size=tinypair.PIECES))


MODELS = dict(t5=lambda: t5.T5(t5.T5Config(**{**SIZES, 'dropout_rate': 0.})),
              decoder=decoder)


@pytest.mark.parametrize('kind', [
    't5', pytest.param('decoder', marks=pytest.mark.slow)])
def test_greedy_answers_are_the_verifiers_whatever_becomes_of_the_drafter(
    corpus, kind):
  """Before, between and after updates, of which none compiles anything."""
  session, params, guide = session_of(corpus, MODELS[kind]())
  lm, update = session.update.lm, session.update
  want, _ = writing.write(
      lm, lm.pack(guide), session.requests, width=48, length=16, batch=6,
      end=corpus.end)
  state, memory, calls = update.init(params), session.fresh(), []
  step_fn = jax.jit(update)
  for step in range(3):
    with timing.CompileLog() as log:
      batch, memory = session.batch(step, state.params, memory)
      state, _ = step_fn(state, batch, guide)
    assert log.programs == 0 or not step
    served = session.serve(lm.pack(state.params), range(4))
    assert [x.tokens for x in served] == want[:4]
    calls.append(sum(x.calls for x in served))
  assert len(set(calls)) > 1                   # the drafter has changed
  width = memory.targets.shape[1]
  for row in range(min(int(memory.texts), len(memory.targets))):
    assert memory.targets[row].tolist() in [
        text + [0] * (width - len(text)) for text in (x[:width] for x in want)]


def test_answers_are_as_long_as_asked_for_however_short_the_prompt(corpus):
  session, params, _ = session_of(corpus, decoder())
  served = session.serve(session.update.lm.pack(params), range(4))
  assert len({len(session.requests[i]) for i in range(4)}) > 1
  assert max(len(x.tokens) for x in served) == session.length


def follow(drafts, tokens):
  """Rejected tokens and calls, from greedy drafts for each prefix of a text."""
  rejected, at, calls = [False] * len(tokens), 0, 0
  while at < len(tokens):
    calls += 1
    right = 0
    while (right < GAMMA and at + right < len(tokens)
           and drafts[at + right] == tokens[at + right]):
      right += 1
    if right < GAMMA and at + right < len(tokens):
      rejected[at + right] = True
    at += right + 1
  return rejected, calls


def test_rejected_are_the_tokens_where_greedy_decoding_rejects(corpus):
  """Against a walk over the drafter's first choices for every prefix."""
  session, params, _ = session_of(corpus, MODELS['t5']())
  lm, found = session.update.lm, []
  for first in range(0, 12, 4):
    for i, served in zip(range(first, first + 4), session.serve(
        lm.pack(params), range(first, first + 4))):
      inputs = np.zeros((1, 48), np.int32)
      inputs[0, :len(session.requests[i])] = session.requests[i]
      batch = dict(inputs=inputs, targets=np.array([served.tokens]))
      drafts = np.asarray(lm.teacher_forced(params, batch).argmax(-1))[0]
      rejected, calls = follow(drafts, served.tokens)
      assert served.rejected == rejected and served.calls == calls
      assert served.drafted[1] - served.drafted[0] == sum(rejected)
      assert len(served.tokens) <= served.drafted[0] + calls
      found += rejected
  assert 5 < sum(found) < len(found) - 5


def test_the_loss_is_of_rejected_positions(corpus):
  """Update's, from the buffer, against the sum over them in float64."""
  session, params, guide = session_of(corpus, MODELS['t5']())
  batch, _ = session.batch(0, params, session.fresh())
  got, sums = jax.jit(session.update.loss)(params, batch, guide)
  lm, want, accepted = session.update.lm, 0., 0.
  q, p = (np.asarray(jax.nn.log_softmax(lm.teacher_forced(x, batch)),
                     np.float64) for x in (params, guide))
  held = list(zip(*np.nonzero(batch['weights'])))
  for at in held:
    want += (np.exp(p[at]) * (p[at] - q[at])).sum()
    accepted += np.minimum(np.exp(p[at]), np.exp(q[at])).sum()
  assert len(held) > 5 and float(sums['tokens']) == len(held)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  np.testing.assert_allclose(sums['acceptance'], accepted, rtol=1e-5)
  assert float(sums['agreement']) == 0          # or it were not rejected


def test_other_tokens_may_have_a_weight(corpus):
  weighed = dataclasses.replace(ONLINE, accepted=.25)
  session, params, _ = session_of(corpus, MODELS['t5'](), weighed)
  batch, memory = session.batch(0, params, session.fresh())
  for row in batch['weights']:
    count = int((row > 0).sum())
    assert set(row[:count]) <= {.25, 1.} and not row[count:].any()
  assert (batch['weights'] == .25).any() and int(memory.texts) == ONLINE.every


def test_only_some_lines_are_served(corpus):
  chosen = next(x for x in corpus.lines('train')
                if len(corpus.encode(x['en'])) <= 48)
  some = dataclasses.replace(ONLINE, only=dict(id=chosen['id']))
  assert some.requests(corpus, 1) == [corpus.encode(chosen['en'])]
  with pytest.raises(ValueError, match="2 requests are wanted, train with .*"
                     "'id'.* has 1 of up to 48 tokens"):
    some.requests(corpus, 2)


@pytest.mark.parametrize('changes,match', [
    (dict(every=0), 'every of Online'), (dict(rows=1.5), 'rows of Online'),
    (dict(accepted=2.), 'accepted of Online'), (dict(gamma=0), 'gamma'),
    (dict(temperature=-1.), 'temperature')])
def test_bad_settings_are_refused(changes, match):
  with pytest.raises(ValueError, match=match):
    online_lib.Online(**changes)
