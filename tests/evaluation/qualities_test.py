"""Qualities are the reference libraries'; resamples are of examples."""
import numpy as np
import pytest
from rouge_score import rouge_scorer
import sacrebleu

from spec_cascades.evaluation import metrics, qualities

TEXTS = ['The cat sat on the mat.', 'A dog ran\nover the hills', 'nothing', '']
REFERENCES = ['The cat is on the mat.', 'The dogs ran\nover a hill.',
              'Nothing!', 'something']
SINGLE = [(x,) for x in REFERENCES]
SEVERAL = [(x, y) for x, y in zip(REFERENCES, [
    'The cat sat on mats.', 'A dog ran over the hills.', 'none', ''])]
# What is no sentence: programs and their tests, solutions.
SPECIAL = {
    'MBPP': (['x = 1', 'x = 2', 'x =', ''], [('assert x == 1',)] * 4),
    'GSM8K': (['The answer is 3.', '4', 'five', ''], [('#### 3',)] * 4)}
ROUGE = {'ROUGE-1': 'rouge1', 'ROUGE-2': 'rouge2', 'ROUGE-L': 'rougeL',
         'ROUGE-Lsum': 'rougeLsum'}


@pytest.mark.parametrize('name', qualities.QUALITIES)
def test_resampling_the_data_itself_gives_the_score(name):
  quality = qualities.make(name)
  texts, references = SPECIAL.get(name, (TEXTS, SEVERAL))
  parts = quality.parts(texts, references)
  assert len(parts) == 4 and quality.signature(references)
  assert 0 < quality(texts, references) < 100
  once = quality.resampled(parts, np.ones((1, 4), np.int64))
  np.testing.assert_allclose(once, [quality(texts, references)])
  weights = metrics.resamples(4, 30, 0)
  for score, row in zip(quality.resampled(parts, weights), weights):
    drawn = np.repeat(np.arange(4), row)
    np.testing.assert_allclose(score, quality(
        [texts[i] for i in drawn], [references[i] for i in drawn]))
  with pytest.raises(ValueError):
    quality.parts(texts, references[1:])


def test_bleu_is_sacrebleus():
  scorer = sacrebleu.BLEU()
  want = scorer.corpus_score(TEXTS, [REFERENCES]).score
  bleu = qualities.make('BLEU')
  np.testing.assert_allclose(bleu(TEXTS, SINGLE), want, rtol=1e-12)
  assert bleu.signature(SINGLE) == str(scorer.get_signature())


@pytest.mark.parametrize('name,kind', ROUGE.items())
def test_rouge_is_the_mean_of_rouge_scores(name, kind):
  scorer = rouge_scorer.RougeScorer([kind], use_stemmer=True)
  want = 100 * np.mean([scorer.score(b, a)[kind].fmeasure
                        for a, b in zip(TEXTS, REFERENCES)])
  found = qualities.make(name)
  np.testing.assert_allclose(found(TEXTS, SINGLE), want, rtol=1e-12)
  assert 0 < want < 100 and kind in found.signature(SINGLE)
  best = 100 * np.mean([scorer.score_multi(b, a)[kind].fmeasure
                        for a, b in zip(TEXTS, SEVERAL)])
  np.testing.assert_allclose(found(TEXTS, SEVERAL), best, rtol=1e-12)
  assert best > want


def test_lsum_cuts_sentences_on_both_sides_as_t5_does():
  """These are swapped: as one sentence, half of the words are in order."""
  text, reference = 'a dog ran . the cat sat .', 'the cat sat . a dog ran .'
  lines = 'the cat sat .\na dog ran .'
  lsum, whole = map(qualities.make, ('ROUGE-Lsum', 'ROUGE-L'))
  for other in (reference, lines):
    assert lsum([text], [(other,)]) == lsum([other], [(text,)]) == 100
    assert whole([text], [(other,)]) == 50
  assert lsum([text], [('a cat .', reference)]) == 100
  assert 'sentences:as in T5' in lsum.signature([(reference,)])
  assert 'sentences' not in whole.signature([(reference,)])


def test_an_unknown_quality_is_refused():
  with pytest.raises(ValueError, match="'BLEURT'; allowed: BLEU, ROUGE-1"):
    qualities.make('BLEURT')
