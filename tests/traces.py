"""Golden traces: whole decodes of a weightless model, round by round."""
import json
import pathlib

import jax.numpy as jnp

from spec_cascades import decode, targets, types, verify
from spec_cascades.drafters import chain, ngram, null, tree
from spec_cascades.models import table
from spec_cascades.warp import Warp
from tests import conformance_test

FOLDER = pathlib.Path(__file__).parent / 'golden'
LM = table.Table(7)
INDEX = jnp.arange(7**3, dtype=jnp.float32).reshape(7, 7, 7)
P = 2 * jnp.sin(INDEX**2)                  # nothing to train, nothing to draw
Q = P + jnp.cos(3 * INDEX)
PROMPT = types.Prompt(jnp.array([[0, 2, 3, 4], [5, 0, 0, 0], [6, 3, 6, 3]]),
                      jnp.array([4, 1, 4]))
CHAIN = chain.Chain(LM, 3)
# name: (drafter, its parameters, verifier, target, warp)
CASES = dict(
    null=(null.Null(), None, verify.Rejection(), targets.Lossless(), Warp()),
    chain=(CHAIN, Q, verify.Rejection(), targets.Lossless(), Warp(.8)),
    chain_greedy=(CHAIN, Q, verify.Rejection(), targets.Diff(.2), Warp(0.)),
    chain_token=(CHAIN, Q, verify.Rejection(), targets.TokenV3(.4),
                 Warp(.8, top_p=.9)),
    chain_stop=(chain.Chain(LM, 4, chain.Below(.5)), Q, verify.Rejection(),
                targets.Chow(.6), Warp()),
    chain_block=(CHAIN, Q, verify.Block(), targets.Lossy(.3), Warp()),
    ngram=(ngram.NGram(3, 2), None, verify.Rejection(), targets.Lossless(),
           Warp(.3)),
    tree=(tree.Tree(LM, (-1, 0, 0, 1, 1, 2)), Q, verify.Rejection(),
          targets.OPT(.3), Warp()))
# And one of every drafter, with the tables of the conformance suite.
EACH = 'drafter_'
CASES |= {
    f'{EACH}{name}': (drafters[0], params, verify.Rejection(),
                      targets.Lossless(), Warp(.8))
    for name, (drafters, params) in conformance_test.DRAFTERS.items()}


def record(name):
  """Everything that a decode shows, as JSON can hold it."""
  drafter, params, verifier, target, warp = CASES[name]
  eos = 1 if params is not None else -1
  lm, p = (conformance_test.verifier_of(name.removeprefix(EACH)),
           conformance_test.P) if name.startswith(EACH) else (LM, P)
  prompt = PROMPT.replace(prefix=PROMPT.prefix % lm.vocab_size)
  spec = decode.GenSpecSample(lm, drafter, 16, verifier, eos)
  rounds, state = [], None
  for done in decode.stream(spec, p, params, prompt,
                            decode.row_keys(3, jnp.arange(3)), target, warp):
    state = done.state
    rounds.append([
        f'{new.tolist()} {" ".join(kinds)} of {drafted.tolist()}' if kinds
        else '' for new, kinds, drafted in zip(
            done.tokens, done.origins, done.drafted)])
  return dict(rounds=rounds, lengths=state.lengths.tolist(),
              tokens=[str(row.tolist()) for row in state.tokens])


def write():
  """Rewrites every file; read the difference before you commit it."""
  FOLDER.mkdir(exist_ok=True)
  for name in CASES:
    text = json.dumps(record(name), indent=1)
    (FOLDER / f'{name}.json').write_text(text + '\n')
