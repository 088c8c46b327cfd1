"""What the tests of the sequential baselines share."""
import itertools

import jax.numpy as jnp

from spec_cascades import baselines, types
from spec_cascades.warp import Warp
from tests.common import LM
from tests.toys import BIG, SMALL

SPEC = baselines.Sequential(LM, LM, 6, eos=-1)
TOYS = baselines.Sequential(BIG, SMALL, 24)
PLAIN, GREEDY = Warp(), Warp(0.)
Seq, Token = baselines.SeqCascade, baselines.TokenCascade
Oracle, BiLD = baselines.OracleCascade, baselines.OriginalBiLD
RULES = [Seq(.45), Seq(.9, normalised=False), Token(.5), Token(.4, block=2),
         Oracle(.1), BiLD(1.), BiLD(1., fallback=.4, length=3)]
FEW = [Seq(.45), Token(.4, block=2), Oracle(.1), BiLD(1., length=3)]
FIELDS = ('rounds', 'drafted', 'accepted', 'corrected', 'bonus', 'emitted',
          'deferred', 'verifier_calls', 'drafter_calls')
# Two tokens of every kind: 25 prompts.
PAIRS = types.Prompt(jnp.array(list(itertools.product(range(5), repeat=2))),
                     jnp.full(25, 2))


def name(rule):
  return str(rule).replace("<class 'spec_cascades.targets.", '').replace(
      "'>", '')
