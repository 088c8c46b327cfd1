"""BLEU is sacrebleu's; intervals cover; ratios are ratios of sums."""
import numpy as np
import pytest
import sacrebleu

from spec_cascades.evaluation import metrics

REFERENCES = ['Die Datei wird im Ordner gespeichert.',
              'Öffnen Sie das Fenster!', 'Dieses Paket enthält Doku.', 'Ja.']
OTHERS = ['Die Datei wird in dem Verzeichnis abgelegt.', 'Fenster öffnen',
          'In diesem Paket steckt die Bibliothek.', 'Jawohl.']
SINGLE = [(x,) for x in REFERENCES]
TEXTS = ['Die Datei wird im Verzeichnis gespeichert.', 'Öffnen Sie Fenster',
         'Dieses Paket enthält die Bibliothek.', '']


def test_bleu_equals_sacrebleu():
  score, signature = metrics.bleu(TEXTS, SINGLE)
  assert 'nrefs:1|' in signature
  assert score == sacrebleu.corpus_bleu(TEXTS, [REFERENCES]).score
  assert 'tok:13a' in signature and sacrebleu.__version__ in signature


def test_summed_parts_give_corpus_bleu():
  parts = metrics.bleu_parts(TEXTS, SINGLE)
  for chosen in ([0, 1, 2, 3], [0, 0, 2], [3], [1, 3]):
    want = sacrebleu.corpus_bleu([TEXTS[i] for i in chosen],
                                 [[REFERENCES[i] for i in chosen]]).score
    np.testing.assert_allclose(metrics.bleu_of(parts[chosen].sum(0)), want,
                               rtol=1e-12)


@pytest.mark.parametrize('others,count', [
    (OTHERS, '2'), ([None, *OTHERS[1:]], 'var')])
def test_bleu_of_several_references_is_sacrebleus(others, count):
  """Also where an example has fewer than the others."""
  pairs = [[x for x in pair if x] for pair in zip(REFERENCES, others)]
  scorer = sacrebleu.BLEU()
  want = scorer.corpus_score(TEXTS, [REFERENCES, others]).score
  score, signature = metrics.bleu(TEXTS, pairs)
  assert score == want > sacrebleu.corpus_bleu(TEXTS, [REFERENCES]).score
  assert signature == str(scorer.get_signature())
  assert f'nrefs:{count}|' in signature


def test_texts_and_references_must_pair_up():
  with pytest.raises(ValueError):
    metrics.bleu_parts(TEXTS, SINGLE[1:])
  with pytest.raises(ValueError, match="example 0 are the string 'Die Datei"):
    metrics.bleu_parts(TEXTS, REFERENCES)
  with pytest.raises(ValueError, match='Example 1 has no reference; give at'):
    metrics.bleu_parts(TEXTS, [*SINGLE[:1], (), *SINGLE[2:]])


def test_resamples_draw_n_examples_and_repeat():
  weights = metrics.resamples(7, 50, 3)
  assert weights.shape == (50, 7) and (weights.sum(1) == 7).all()
  np.testing.assert_array_equal(weights, metrics.resamples(7, 50, 3))
  assert (weights != metrics.resamples(7, 50, 4)).any()


def test_an_interval_of_a_ratio_covers_the_truth():
  rng = np.random.default_rng(0)
  hits, runs, n = 0, 200, 80
  for run in range(runs):
    base = rng.gamma(4, 1, n)
    ours = base * .5 * rng.uniform(.6, 1.4, n)      # E[ours] / E[base] = .5
    low, high = metrics.interval(metrics.bootstrap_ratio(
        ours, base, metrics.resamples(n, 300, run)))
    hits += low <= .5 <= high
  assert .88 <= hits / runs <= .99


def test_pairing_cancels_what_examples_share():
  length = np.random.default_rng(1).gamma(2, 1, 100)
  weights = metrics.resamples(100, 500, 0)
  low, high = metrics.interval(
      metrics.bootstrap_ratio(.7 * length, length, weights))
  np.testing.assert_allclose([low, high], .7)


def test_intervals_may_be_infinite():
  samples = np.array([-np.inf] * 60 + [1.] * 940)
  assert metrics.interval(samples) == (-np.inf, 1.)


def test_drafting_is_resampled_by_example():
  row = dict(rounds=4, drafted=12, accepted=8, corrected=2, bonus=2, emitted=12,
             deferred=1., verifier_calls=4, drafter_calls=12,
             histogram=[1, 0, 1, 2], rejected=[1, 0, 1, 0])
  other = dict(row, accepted=0, corrected=4, bonus=0, emitted=4,
               histogram=[4, 0, 0, 0], rejected=[4, 0, 0, 0])
  rows = [row, other] * 50
  found = metrics.drafting(rows, metrics.resamples(len(rows), 400, 0))
  assert found.tokens.value == 16 / 8 and found.without_bonus.value == 14 / 8
  assert [x.value for x in found.accepted] == [3 / 8, 1, 2 / 3]
  assert 1.7 < found.tokens.low < 2 < found.tokens.high < 2.3
  assert found.accepted[1].low == found.accepted[1].high == 1
  alone = metrics.drafting([other], metrics.resamples(1, 10, 0))
  assert [x.value for x in alone.accepted] == [0]


def test_ratios_are_of_sums():
  row = dict(rounds=2, drafted=10, accepted=3, corrected=1, bonus=1, emitted=5,
             verifier_calls=2, drafter_calls=12, deferred=2.5,
             histogram=[1, 0, 0, 1])
  other = dict(row, rounds=4, accepted=0, corrected=4, bonus=0, emitted=4,
               verifier_calls=4, deferred=4., histogram=[4, 0, 0, 0])
  found = metrics.ratios([row, other])
  assert found['rejection_rate'] == 5 / 8 and found['tokens_per_call'] == 9 / 6
  assert found['mean_accepted'] == 3 / 6 and found['deferral_rate'] == 6.5 / 9
  assert found['histogram'] == [5, 0, 0, 1] and found['drafted'] == 20


def test_no_draft_has_no_rejection_rate():
  row = dict.fromkeys(metrics.COUNTS, 0)
  found = metrics.ratios([dict(row, emitted=2, bonus=2, verifier_calls=2,
                               deferred=2., histogram=[2])])
  assert found['rejection_rate'] is None and found['tokens_per_call'] == 1


def test_latencies_are_in_milliseconds():
  found = metrics.latencies(np.array([.01, .02, .06]))
  np.testing.assert_allclose(
      [found['latency_mean'], found['latency_median']], [30, 20])
  assert 20 < found['latency_p90'] < 60
