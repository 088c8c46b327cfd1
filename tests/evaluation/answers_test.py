"""Answers count as the official rules of each task have it."""
import decimal
import unicodedata

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from spec_cascades.evaluation import answers, qualities

FREELY = hypothesis.settings(max_examples=200, deadline=None, derandomize=True)
TEXTS = st.one_of(st.text(max_size=60), st.text(
    "aAnthe _-'‘’´`.,$#0123456789\n:İßﬀé", max_size=60))
NORMALISERS = [answers.squad, answers.trivia, answers.open_domain]


def score(name, text, *references):
  return qualities.make(name)([text], [references])


@pytest.mark.parametrize('text,reference,same,f1', [
    ('The  Cat!', 'cat', 1, 1.), ('a an the', '', 1, 1.), ('', 'x', 0, 0.),
    ('x', '...', 0, 0.), ("it's", 'its', 1, 1.), ('theory', 'ory', 0, 0.),
    ('one two two', 'two two three four', 0, 4 / 7),
    ('two one', 'one two', 0, 1.)])
def test_answers_are_compared_as_in_squad(text, reference, same, f1):
  assert answers.squad_exact(text, [reference]) == same
  np.testing.assert_allclose(answers.squad_f1(text, [reference]), f1)
  both = [[reference], ['q']]
  assert qualities.make('EM')([text] * 2, both) == 50 * same


def test_the_best_reference_counts():
  assert score('EM', 'Denver', 'Denver Broncos', 'denver') == 100
  # 'the' is dropped; 2 common words of 3 and 2, of 3 and 4: 4/5 and 4/7.
  found = score('F1', 'the red big cat', 'dog', 'big cat', 'big cat or dog')
  np.testing.assert_allclose(found, 80)
  assert score('NQ', '14 December 1972', 'December 1972',
               '14 December 1972 UTC') == 0


@pytest.mark.parametrize('name', ['EM', 'F1'])
@pytest.mark.parametrize('references', [(), ('',), ('The', '...')])
def test_no_answer_is_answered_by_nothing_alone(name, references):
  assert score(name, '', *references) == 100
  assert score(name, 'The!', *references) == 100
  assert score(name, 'no', *references) == 0


def test_an_answer_that_says_nothing_is_no_answer():
  """SQuAD's script drops it, so that an empty text is wrong."""
  assert score('EM', '', 'a', 'an apple') == score('F1', '', 'a', 'apple') == 0


@pytest.mark.parametrize('text,squad,trivia', [
    ('AC/DC', 'acdc', 'ac dc'), ('Snow_White', 'snowwhite', 'snow white'),
    ('the Queen’s', 'queen’s', 'queen s'), ('‘Yes´ `no`', '‘yes´ no', 'yes no'),
    ('U.S.A.', 'usa', 'u s'), ('Rock-n-Roll!', 'rocknroll', 'rock n roll')])
def test_trivia_parts_words_where_squad_joins_them(text, squad, trivia):
  """'U.S.A.' loses its last letter: 'a' alone is an article."""
  assert answers.squad(text) == squad and answers.trivia(text) == trivia


def test_trivia_f1_of_nothing_is_zero():
  assert score('TriviaQA-EM', 'The', 'an') == 100
  assert score('TriviaQA-F1', 'The', 'an') == 0
  assert score('F1', 'The', 'an') == 100
  # 'ac dc band' and 'ac dc': 2 * 2 / (3 + 2).
  np.testing.assert_allclose(
      score('TriviaQA-F1', 'AC/DC (band)', 'x', 'AC_DC'), 80)


def test_accents_count_however_they_are_encoded():
  composed, apart = 'Beyonc\u00e9', 'Beyonce\u0301'
  for name in ('NQ', 'WebQ'):
    assert score(name, composed, apart) == 100
    assert score(name, 'Beyonce', composed) == 0
  assert score('EM', composed, apart) == 0


@pytest.mark.parametrize('text,value', [
    ('She has 5 - 2 = 3 left.\n#### 3', '3'), ('#### 1,234', '1234'),
    ('The answer is 18.', '18'), ('THE ANSWER IS: $1,000.50.', '1000.5'),
    ('**Answer:** 7 of 9', '9'), ('Answer = -3', '-3'), ('#### -$5', '-5'),
    ('so he pays $-5', '-5'), ('10-5', '5'), ('(3)-4', '4'), ('\u22127', '-7'),
    ('The answer is 3 + 4 = 7.\nThat took 2 steps.', '7'),
    ('The answer is:\n\n42\n\nThanks 1', '42'),
    ('The answer is 4. No, the answer is 6.', '6'),
    ('Of 3 pies, 2 are left. That is the answer: two', '2'),
    ('first 1, then 2\nthen 30,', '30'), ('3\nnone', '3'), ('.5', '0.5'),
    ('He answers 5 questions in 6 minutes', '6'), ('007', '7'), ('$3.', '3')])
def test_the_number_that_a_solution_ends_with(text, value):
  assert answers.number(text) == decimal.Decimal(value)


@pytest.mark.parametrize('text', ['', 'none', '####', 'The answer is', '$,.-'])
def test_a_text_without_a_number_is_wrong(text):
  assert answers.number(text) is None
  assert score('GSM8K', text, '#### 0') == 0


def test_numbers_are_equal_by_value():
  assert score('GSM8K', 'The answer is $1,200.00.', '6*200=1200\n#### 1,200')
  with pytest.raises(ValueError, match="'many' has no number; end it with '##"):
    score('GSM8K', '1', 'many')


@pytest.mark.parametrize('text,code', [
    ('def f(): pass', 'def f(): pass'),
    ('[BEGIN]\nx = 1\n[DONE]\nmore', '\nx = 1\n'),
    ('Sure:\n```python\nx = 1\n```\nand\n```\ny\n```', 'x = 1\n'),
    ('[BEGIN]```py\nx = 1', 'x = 1'), ('x = 1\n[DONE]', 'x = 1\n')])
def test_code_is_found_in_what_is_around_it(text, code):
  assert answers.code(text) == code


@pytest.mark.parametrize('normal', NORMALISERS, ids=lambda f: f.__name__)
@hypothesis.given(text=TEXTS)
@FREELY
def test_normalisers_settle_at_once(normal, text):
  """Whatever the text: another pass changes nothing, and nothing raises.

  Only where punctuation parted accents does their order settle a pass later.
  """
  once = normal(text)
  hypothesis.assume(normal is not answers.open_domain
                    or unicodedata.is_normalized('NFD', once))
  assert normal(once) == once and once == ' '.join(once.split())


@hypothesis.given(TEXTS, st.lists(TEXTS, min_size=1, max_size=3))
@FREELY
def test_scores_are_fractions_and_one_for_an_answer_itself(text, references):
  for name in ('EM', 'F1', 'TriviaQA-EM', 'TriviaQA-F1', 'NQ', 'WebQ'):
    assert 0 <= score(name, text, *references) <= 100
  assert score('NQ', references[-1], *references) == 100
  assert score('F1', text, *references) >= score('EM', text, *references)
  assert answers.code(text) in text


@hypothesis.given(TEXTS, st.decimals(-10**6, 10**6, places=2))
@FREELY
def test_any_number_is_found_after_the_mark(text, value):
  answers.number(text)
  assert answers.number(f'{text}\n#### {value:,}.') == value
