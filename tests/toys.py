"""Drafters on toy transformers, for tests of caches and of the loop."""
import jax

from spec_cascades.drafters import (
    chain, jacobi, lookahead, ngram, null, specinfer, spectr, tree)
from spec_cascades.models import toy

BIG, SMALL = toy.ToyLM(), toy.ToyLM(layers=1, scale=2.)
PB, PS, PS2 = jax.jit(lambda: [lm.init_params(jax.random.key(i)) for i, lm
                               in enumerate((BIG, SMALL, SMALL))])()
TREE = (-1, 0, 0, 1, 1, 2)
# name: (drafter, its parameters)
DRAFTERS = dict(
    null=(null.Null(), None),
    chain=(chain.Chain(SMALL, 3), PS),
    stop=(chain.Chain(SMALL, 3, chain.Below(.6)), PS),
    ngram=(ngram.NGram(3, 1), None),
    jacobi=(jacobi.Jacobi(3), None),
    lookahead=(lookahead.Lookahead(5, 3, 3, 2, 12), None),
    tree=(tree.Tree(SMALL, TREE, 'sampled'), PS),
    specinfer=(specinfer.SpecInfer(
        (SMALL, SMALL), ((-1, 0, 1), (-1, 0))), (PS, PS2)),
    spectr=(spectr.SpecTr(SMALL, 2, 2), PS),
    distinct=(tree.Tree(SMALL, TREE), PS))
