"""Cleans, filters and splits aligned text blocks."""

from collections.abc import Iterator
import dataclasses
import re
import unicodedata

_GERMAN = frozenset(
    'der die das und ist nicht ein eine einen einem einer eines des dem den '
    'wird werden mit für von zu auf im sie es sich oder als bei wenn kann '
    'können dass diese dieser dieses diesem wie aus nach durch zum zur auch '
    'sind nur alle keine über vom beim ihre ihren ihnen wurde aber sowie unter '
    'ermöglicht enthält bietet'.split()
)
_ENGLISH = frozenset(
    'the and is not a an of to for with this that be are or on if it can by '
    'from as you when all no which use used at your has have its provides '
    'contains using'.split()
)
_WORD = re.compile(r'[^\W\d_]+')
_NUMBER = re.compile(r'\d+')
_THOUSANDS = re.compile(r'(?<=\d)[.,\u202f\u00a0 ](?=\d{3}(?!\d))')

# Full stops that do not end a sentence, in either language.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'„“»])(?:[A-Za-zÄÖÜ]|e\.g|i\.e|etc|vs|cf|resp|approx|incl|"
    r'no|fig|vol|mr|mrs|dr|prof|st|inc|ltd|corp|z\. ?B|d\. ?h|u\. ?a|u\. ?U|'
    r'o\. ?ä|s\. ?o|s\. ?u|bzw|usw|ca|evtl|ggf|inkl|einschl|vgl|Nr|Abb|Bsp|'
    r'sog|engl|dt|Dr|Std|Min|max|min|etw|allg|bspw|mind|[0-9]+)\.$',
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(
    r"[.!?][)\"'“”«»]*\s+(?=[\"'„“»«(]?[A-ZÄÖÜ0-9])"
)


@dataclasses.dataclass(frozen=True)
class Pair:
  """An aligned pair and where it comes from.

  Attributes:
    en: English text, normalised.
    de: German text, normalised.
    origin: name of the source, for example 'descriptions'.
    group: package family or help file; splits never divide a group.
  """

  en: str
  de: str
  origin: str
  group: str


def normalise(text: str) -> str:
  """NFC, no soft hyphens or zero-width spaces, single spaces."""
  text = unicodedata.normalize('NFC', text)
  text = text.replace('\u00ad', '').replace('\u200b', '').replace('\ufeff', '')
  return ' '.join(text.split())


def _numbers(text: str) -> list[str]:
  """Sorted digit groups; thousands separators are ignored."""
  return sorted(_NUMBER.findall(_THOUSANDS.sub('', text)))


def _looks_german(text: str) -> bool:
  """Whether German function words outnumber English ones."""
  words = [x.lower() for x in _WORD.findall(text)]
  if len(words) < 6:
    return True  # Too short to tell.
  german = sum(x in _GERMAN for x in words)
  english = sum(x in _ENGLISH for x in words)
  return german > english


def is_translation(
    en: str, de: str, *, min_words: int = 3, max_chars: int = 1200
) -> bool:
  """Whether a candidate pair passes every alignment filter.

  The filters are: both sides present, different (untranslated text is common),
  long and short enough, a character ratio in [0.5, 2.2], mostly letters, no
  `<trans>` placeholder, German function words on the German side, and the same
  numbers on both sides.

  Args:
    en: normalised English text.
    de: normalised German text.
    min_words: fewest words of the English side; the German side may have one
      less, since German compounds are written as one word.
    max_chars: most characters on either side.
  """
  if not en or not de or en.lower() == de.lower() or '<trans>' in de:
    return False
  if len(en.split()) < min_words or len(de.split()) < max(1, min_words - 1):
    return False
  if max(len(en), len(de)) > max_chars:
    return False
  if not 0.5 <= len(de) / len(en) <= 2.2:
    return False
  if sum(c.isalpha() for c in en) < 0.6 * len(en):
    return False
  return _looks_german(de) and _numbers(en) == _numbers(de)


def split_sentences(text: str) -> list[str]:
  """Splits at sentence ends; 'e.g. X', 'z. B. X' and '3. Mai' stay whole."""
  sentences, start = [], 0
  for match in _SENTENCE_END.finditer(text):
    end = match.end()
    head = text[start:end].rstrip()
    if _ABBREVIATION.search(head):
      continue
    sentences.append(head)
    start = end
  return sentences + [text[start:]] if text[start:] else sentences


def split_pair(en: str, de: str) -> list[tuple[str, str]]:
  """Sentence pairs of an aligned paragraph, or the paragraph itself.

  A paragraph is divided only if both sides have the same number of sentences
  and every sentence pair passes `is_translation`; otherwise it stays whole.
  """
  english, german = split_sentences(en), split_sentences(de)
  if len(english) != len(german) or len(english) < 2:
    return [(en, de)]
  pairs = list(zip(english, german))
  if all(is_translation(e, d, min_words=2) for e, d in pairs):
    return pairs
  return [(en, de)]


def align_blocks(
    en: str,
    de: str,
    *,
    origin: str,
    group: str,
    min_words: int = 3,
) -> Iterator[Pair]:
  """Filters one aligned block and yields its sentence pairs."""
  en, de = normalise(en), normalise(de)
  if is_translation(en, de, min_words=min_words):
    for source, target in split_pair(en, de):
      yield Pair(source, target, origin, group)
