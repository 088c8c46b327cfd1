"""Streamed text is the text, and no character is ever torn."""
import random

import pytest

from spec_cascades.evaluation import stream
from spec_cascades.evaluation import text


@pytest.fixture(scope='module')
def vocabulary(pair_dir):
  return text.Vocabulary(str(pair_dir / 'verifier' / 'sentencepiece.model'))


def streamed(vocabulary, tokens):
  shown = stream.Detokenizer(vocabulary)
  return [shown.add(t) for t in tokens], shown.finish()


@pytest.mark.parametrize('source', [
    'Die Datei wird geöffnet.', 'ß', 'naïve 🦊🦊 日本語 x', '  two  spaces ',
    'Zeile\u2028neu', '🦊'])
def test_text_of_any_script_comes_in_whole_characters(vocabulary, source):
  tokens = vocabulary.encode(source)
  parts, rest = streamed(vocabulary, tokens)
  assert ''.join(parts) + rest == vocabulary.decode(tokens)
  assert rest == '' and not any('\ufffd' in part for part in parts)


def test_any_tokens_at_all_give_their_text(vocabulary):
  rng = random.Random(0)
  model = vocabulary.model
  tokens = [t for t in range(model.get_piece_size()) if t != text.EOS]
  raw = [t for t in tokens if model.is_byte(t)]
  for _ in range(300):
    pool = rng.choice([tokens, raw, raw[120:], [*raw, *[text.PAD] * 99]])
    chosen = rng.choices(pool, k=rng.randint(1, 12))
    parts, rest = streamed(vocabulary, chosen)
    assert ''.join(parts) + rest == vocabulary.decode(chosen)


@pytest.mark.parametrize('source', ['日本', 'naïve 🦊🦊 x', 'Ω'])
def test_padding_inside_a_character_does_not_tear_it(vocabulary, source):
  tokens = vocabulary.bare(source)
  assert any(map(vocabulary.model.is_byte, tokens))
  torn = [x for t in tokens for x in (text.PAD, t, text.PAD, text.PAD)]
  parts, rest = streamed(vocabulary, torn)
  assert ''.join(parts) == vocabulary.decode(torn) == source and not rest
  assert not any('\ufffd' in part for part in parts)
  # A character is shown with its last byte, not when padding comes behind it.
  alone, _ = streamed(vocabulary, tokens)
  assert parts[1::4] == alone and not any(
      parts[i] for i in range(len(parts)) if i % 4 != 1)


def test_nothing_is_shown_after_the_end(vocabulary):
  tokens = vocabulary.encode('Ende')
  parts, rest = streamed(vocabulary, [*tokens, *tokens])
  assert ''.join(parts) + rest == 'Ende'
