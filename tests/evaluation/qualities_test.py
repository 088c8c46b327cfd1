"""Qualities are the reference libraries'; resamples are of examples."""
import numpy as np
import pytest
from rouge_score import rouge_scorer
import sacrebleu

from spec_cascades.evaluation import metrics, qualities

TEXTS = ['The cat sat on the mat.', 'A dog ran\nover the hills', 'nothing', '']
REFERENCES = ['The cat is on the mat.', 'The dogs ran\nover a hill.',
              'Nothing!', 'something']
ROUGE = {'ROUGE-1': 'rouge1', 'ROUGE-2': 'rouge2', 'ROUGE-L': 'rougeL',
         'ROUGE-Lsum': 'rougeLsum'}


@pytest.mark.parametrize('name', qualities.QUALITIES)
def test_resampling_the_data_itself_gives_the_score(name):
  quality = qualities.make(name)
  parts = quality.parts(TEXTS, REFERENCES)
  assert len(parts) == 4 and quality.signature()
  once = quality.resampled(parts, np.ones((1, 4), np.int64))
  np.testing.assert_allclose(once, [quality(TEXTS, REFERENCES)])
  weights = metrics.resamples(4, 30, 0)
  for score, row in zip(quality.resampled(parts, weights), weights):
    drawn = np.repeat(np.arange(4), row)
    np.testing.assert_allclose(score, quality(
        [TEXTS[i] for i in drawn], [REFERENCES[i] for i in drawn]))
  with pytest.raises(ValueError):
    quality.parts(TEXTS, REFERENCES[1:])


def test_bleu_is_sacrebleus():
  scorer = sacrebleu.BLEU()
  want = scorer.corpus_score(TEXTS, [REFERENCES]).score
  bleu = qualities.make('BLEU')
  np.testing.assert_allclose(bleu(TEXTS, REFERENCES), want, rtol=1e-12)
  assert bleu.signature() == str(scorer.get_signature())


@pytest.mark.parametrize('name,kind', ROUGE.items())
def test_rouge_is_the_mean_of_rouge_scores(name, kind):
  scorer = rouge_scorer.RougeScorer([kind], use_stemmer=True)
  want = 100 * np.mean([scorer.score(b, a)[kind].fmeasure
                        for a, b in zip(TEXTS, REFERENCES)])
  found = qualities.make(name)
  np.testing.assert_allclose(found(TEXTS, REFERENCES), want, rtol=1e-12)
  assert 0 < want < 100 and kind in found.signature()


@pytest.mark.parametrize('text,reference,same,f1', [
    ('The  Cat!', 'cat', 1, 1.), ('a an the', '', 1, 1.), ('', 'x', 0, 0.),
    ('x', '...', 0, 0.), ("it's", 'its', 1, 1.), ('theory', 'ory', 0, 0.),
    ('one two two', 'two two three four', 0, 4 / 7),
    ('two one', 'one two', 0, 1.)])
def test_answers_are_compared_as_in_squad(text, reference, same, f1):
  assert qualities.exact(text, reference) == same
  np.testing.assert_allclose(qualities.f1(text, reference), f1)
  assert qualities.make('EM')([text] * 2, [reference, 'q']) == 50 * same


def test_an_unknown_quality_is_refused():
  with pytest.raises(ValueError, match="'BLEURT'; allowed: BLEU, ROUGE-1"):
    qualities.make('BLEURT')
