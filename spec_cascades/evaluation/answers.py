"""What counts as a right answer: the rules of the question-answering tasks.

Each rule looks at one text and at all answers that are allowed; the best one
counts. They are the rules of the official scripts, written anew.
"""
from __future__ import annotations

import collections
import decimal
import re
import string
from typing import Callable, Sequence
import unicodedata

ARTICLES = re.compile(r'\b(a|an|the)\b')
DROPPED = str.maketrans('', '', string.punctuation)
SPACED = str.maketrans(dict.fromkeys(string.punctuation + '‘’´`', ' '))
# A minus is a sign unless something that has a value comes before it: 10-5.
NUMBER = re.compile(r'(?:(?<![\w)\]])-)?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)',
                    re.ASCII)
PHRASE = re.compile(r'####|\banswer[\s*_]*(?:\bis\b|[:=])', re.IGNORECASE)
FENCE = re.compile(r'```[^\n`]*\n(.*?)(?:```|\Z)', re.DOTALL)


def squad(text: str) -> str:
  """An answer without case, punctuation, articles and extra spaces.

  Reference: Rajpurkar et al. (2018), SQuAD's evaluation script, version 2.0,
  https://arxiv.org/abs/1806.03822
  """
  return _plain(text.lower().translate(DROPPED))


def trivia(text: str) -> str:
  """As `squad`, but punctuation and curly quotes part words: AC/DC is two.

  Reference: Joshi et al. (2017), TriviaQA's evaluation script, version 1.0,
  https://arxiv.org/abs/1705.03551
  """
  return _plain(text.lower().translate(SPACED))


def open_domain(text: str) -> str:
  """As `squad`, with accents apart from letters, however they were encoded.

  Reference: Lee et al. (2019), ORQA's evaluation of Natural Questions (open)
  and WebQuestions, https://arxiv.org/abs/1906.00300
  """
  return squad(unicodedata.normalize('NFD', text))


def exact(text: str, answers: Sequence[str],
          normal: Callable[[str], str]) -> float:
  """Whether the text is one of the answers, both after `normal`."""
  return float(normal(text) in map(normal, answers))


def squad_exact(text: str, answers: Sequence[str]) -> float:
  """SQuAD 2.0's exact match: see `exact` and `answerable`."""
  return exact(text, answerable(answers), squad)


def squad_f1(text: str, answers: Sequence[str]) -> float:
  """SQuAD 2.0's F1 of words; without any word, 1 if both have none, else 0."""
  ours = squad(text).split()
  rows = [squad(x).split() for x in answerable(answers)]
  return max(overlap(ours, x) if ours and x else float(ours == x) for x in rows)


def trivia_f1(text: str, answers: Sequence[str]) -> float:
  """TriviaQA's F1 of words; 0 where either has none."""
  ours = trivia(text).split()
  return max(overlap(ours, trivia(x).split()) for x in answers)


def answerable(answers: Sequence[str]) -> list[str]:
  """Those that `squad` leaves something of; if there are none, only ''.

  So a question without an answer is answered by an empty text alone, or by one
  that `squad` leaves nothing of.
  """
  return [x for x in answers if squad(x)] or ['']


def overlap(ours: Sequence[str], theirs: Sequence[str]) -> float:
  """Harmonic mean of precision and recall of words, with repeats."""
  same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
  return 2 * same / (len(ours) + len(theirs)) if same else 0.


def number(text: str) -> decimal.Decimal | None:
  """The number that a solution ends with, None if there is none.

  After the last '####', 'answer is', 'answer:' or 'answer =' (any case): the
  last number of the first line that has one. If nothing follows such a phrase,
  or there is no phrase: the last number of the text. Commas and a dollar sign
  don't count, nor does a period that no digit follows; a minus directly
  before the number or its dollar sign does.

    'It is 3 + 4. The answer is 3 + 4 = $7.00.'  ->  7
    'She has 1,200 left, not 10-5.'              ->  5

  Solutions end before the next question of a few-shot prompt: cut texts there.
  Reference: Cobbe et al. (2021), whose '####' it is,
  https://arxiv.org/abs/2110.14168
  """
  text = text.replace('\N{MINUS SIGN}', '-')
  tail = text[max((x.end() for x in PHRASE.finditer(text)), default=0):]
  lines = [found for line in tail.splitlines() if (found := _numbers(line))]
  found = lines[0 if tail != text else -1] if lines else _numbers(text)
  return found[-1] if found else None


def same_number(text: str, answers: Sequence[str]) -> float:
  """GSM8K: whether `number` of a text equals that of an answer: 18 is 18.0.

  Raises:
    ValueError: An answer has no number.
  """
  theirs = [number(x) for x in answers]
  if None in theirs:
    raise ValueError(f'The answer {answers[theirs.index(None)][-60:]!r} has no '
                     "number; end it with '####' and one.")
  return float(number(text) in theirs)


def code(text: str) -> str:
  """The program in a text: a prompt's marks and prose around it are dropped.

  Of what lies between [BEGIN] and [DONE], as far as they are there, the first
  block fenced by three backticks; all of it if nothing is fenced.
  """
  text = text.split('[BEGIN]', 1)[-1].split('[DONE]', 1)[0]
  fenced = FENCE.search(text)
  return fenced[1] if fenced else text


def _plain(text: str) -> str:
  return ' '.join(ARTICLES.sub(' ', text).split())


def _numbers(text: str) -> list[decimal.Decimal]:
  return [decimal.Decimal(re.sub('[,$]', '', x)) for x in NUMBER.findall(text)]
