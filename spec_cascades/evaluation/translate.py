"""Text in, rounds of text out: what scripts/decode.py runs."""
from __future__ import annotations

import dataclasses
from typing import Any, Iterator

import jax.numpy as jnp

from spec_cascades import check
from spec_cascades import decode
from spec_cascades import warp as warp_lib
from spec_cascades.evaluation import drafting
from spec_cascades.evaluation import examples
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import rules
from spec_cascades.evaluation import stream
from spec_cascades.evaluation import text

# Inputs are padded to one of these widths: few programs for any text.
WIDTHS = (32, 64, 128, 256, 512, 1024, 2048)


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to decode. Checked when made; nothing is compiled for that.

  Attributes:
    rule: A name in `rules.RULES`.
    drafter: A key of `drafting.KINDS`, with a path where it reads one.
    alpha: The rule's threshold; its default if None.
    gamma: Tokens drafted a round.
    temperature: Of both models; 0 is greedy.
    top_p: Mass kept; 1 is off.
    top_k: Tokens kept; 0 is off.
    seed: Of the random numbers.
    max_length: Outputs are cut at so many tokens.
  """
  rule: str = 'Lossless'
  drafter: str = 'chain'
  alpha: float | None = None
  gamma: int = 5
  temperature: float = 0.0
  top_p: float = 1.0
  top_k: int = 0
  seed: int = 0
  max_length: int = 128

  def __post_init__(self):
    target = rules.make(self.rule, self.alpha)
    drafting.check_name(self.drafter, target, self.gamma)
    rules.check_sampling(self.temperature, self.top_p, self.top_k)
    check.interval('seed', self.seed, 0, 2**32 - 1, whole=True)
    check.interval('max_length', self.max_length, 1, 10**5,
                   hint='It counts output tokens.')


@dataclasses.dataclass(frozen=True)
class Step:
  """What one round added to one text."""
  text: str                       # characters that are now complete
  pieces: tuple[stream.Piece, ...]
  drafted: int                    # tokens proposed
  fault: int = 0                  # the round of non-finite logits, from 1


class Translator:
  """A pair of models with settings; one text at a time.

  Args:
    pair: The models.
    settings: How to decode.
    max_input_length: Refuse longer inputs; the models' own limit if None.
  """

  def __init__(self, pair: pairs.Pair, settings: Settings, *,
               max_input_length: int | None = None):
    reads_q = rules.RULES[settings.rule].uses_q
    pair = drafting.supplied(
        pair, [(settings.drafter, settings.gamma, reads_q)])
    self._pair, self._settings = pair, settings
    self.limit = pair.max_input_length
    if max_input_length is not None:
      check.interval('max_input_length', max_input_length, 1, self.limit,
                     hint='The model was trained for no more.')
      self.limit = max_input_length

  @property
  def digests(self) -> list[str]:
    """SHA-256 of the models, their vocabulary and what drafters read."""
    pair = self._pair
    models = [x.sha256 for x in (pair.verifier, pair.drafter) if x]
    return [*models, pair.vocabulary_sha256,
            *(x.sha256 for x in pair.parts.values())]

  def encode(self, source: str, what: str = 'The input') -> list[int]:
    """Tokens of an input; ValueError if it is empty or too long."""
    words = self._pair.vocabulary
    found = examples.encode(words, source, self.limit, what=what)
    if self._pair.prompt is text.prefix_prompt:
      text.check_context(what, len(found), self._settings.max_length, words)
    return found

  def __call__(self, tokens: list[int], index: int = 0) -> Iterator[Step]:
    """Decodes one input, round by round.

    Args:
      tokens: From `encode`.
      index: Of the text; it and the seed fix the random numbers.
    """
    chosen, vocabulary = self._settings, self._pair.vocabulary
    drafter, draft_params = drafting.make(
        chosen.drafter, self._pair, chosen.gamma)
    width = next((w for w in WIDTHS if len(tokens) <= w), len(tokens))
    lm = drafting.verifier(self._pair, drafter)
    copies = meshes.groups(lm)         # groups of devices share no row
    prompt, keys = meshes.rows(lm, (
        text.capped(self._pair.prompt([tokens] * copies, width),
                    chosen.max_length),
        decode.row_keys(chosen.seed, [index] * copies)))
    spec = decode.GenSpecSample(
        lm, drafter, chosen.max_length + prompt.prefix.shape[1],
        drafting.split(chosen.drafter)[0].judge, tuple(vocabulary.ends))
    shown = stream.Detokenizer(vocabulary)
    target, warp = meshes.rows(lm, (self._target(), self._warp()))
    for done in decode.stream(
        spec, self._pair.verifier.params, draft_params, prompt,
        keys, target, warp):
      new = done.tokens[0]
      yield Step(''.join(shown.add(t) for t in new),
                 tuple(stream.pieces(vocabulary, new, done.origins[0])),
                 len(done.drafted[0]), int(done.state.fault[0]))
    yield Step(shown.finish(), (), 0)

  def _target(self) -> Any:
    chosen = self._settings
    target = rules.make(chosen.rule, chosen.alpha)
    if not rules.takes_alpha(type(target)):
      return target
    return target.replace(alpha=jnp.float32(target.alpha))

  def _warp(self) -> warp_lib.Warp:
    chosen = self._settings
    return warp_lib.Warp(
        jnp.float32(chosen.temperature), jnp.int32(chosen.top_k),
        jnp.float32(chosen.top_p), jnp.float32(0))
