"""Weights held in other ways give the same tokens; their times are printed."""
import jax
import pytest

from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import held
from spec_cascades.models import kernels
from spec_cascades.models import products
from spec_cascades.models import t5
from tests import tinypair


def loaded(seed, **kwargs):
  lm = t5.T5(tinypair.config(32, 2, vocab_size=128))
  return benchmarks.Loaded(lm, lm.pack(lm.init_params(jax.random.key(seed)),
                                       **kwargs))


def found(**kwargs):
  return list(held.lines(loaded(0, **kwargs), loaded(1, **kwargs), gamma=2,
                         rate=.5, tokens=6, runs=1))


@pytest.mark.skipif(kernels.library() is None, reason='There is no C compiler.')
def test_every_way_is_timed_and_gives_the_same_tokens(monkeypatch):
  lines = found()
  for what in ('alone', 'with drafts'):
    for way in held.WAYS:
      assert sum(x.startswith(what) and f' {way} ' in x for x in lines) == 1
  assert lines[-1] == 'all tokens are the same' and len(lines) == 10

  def damaged(packed):
    return jax.tree.map(lambda x: -x, products.compacted(packed))

  monkeypatch.setitem(held.WAYS, 'bfloat16, huge pages', damaged)
  with pytest.raises(AssertionError):
    found()


def test_without_kernels_it_is_left_out():
  line, = found(cut=True)
  assert 'left out' in line and 'none here' in line
