"""A language model that is a table of counts: unigrams, bigrams, n-grams.

    table = counts.build(texts, vocab_size=32_000, order=3)        # a trigram
    drafter = chain.Chain(counts.Counts(32_000, order=3), 4)

It costs next to nothing, and it has a q: rules that read q and trees go with
it as with any small model.

Reference: Leviathan et al. (2023), sec. 3.6, https://arxiv.org/abs/2211.17192
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
import dataclasses
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
import numpy as np

from spec_cascades import cache as cache_lib
from spec_cascades import check
from spec_cascades import struct
from spec_cascades import types


@struct.dataclass
class Level:
  """What follows contexts of one length, a level of a trie read backwards.

  Context c at this level is a context of the level above, the part that is
  nearest to the next token, behind one older token. The children of context s
  above are start[s] to start[s + 1], in order of that token.
  """
  start: Int[Array, 'A1']           # A contexts above, A1 = A + 1
  older: Int[Array, 'C']
  tokens: Int[Array, 'C M']         # the commonest that follow
  probs: Float[Array, 'C M']        # less what is left to shorter contexts


@struct.dataclass
class Table:
  """How often tokens follow contexts of 0, 1, ... tokens."""
  unigram: Float[Array, 'V']
  levels: tuple[Level, ...]


@dataclasses.dataclass(frozen=True)
class Counts:
  """q(x | context) = kept(x) + (1 - sum kept) q(x | one token less).

  `kept` are the discounted shares of the commonest tokens behind the context, 0
  where it has not been seen: what is left goes to the shorter context, down to
  the unigram, which gives every token something.

  Attributes:
    vocab_size: Of the verifier.
    order: n: the last n - 1 tokens are looked at.
  """
  vocab_size: int
  order: int = 2

  def __post_init__(self):
    for name in ('vocab_size', 'order'):
      check.interval(f'{name} of Counts', getattr(self, name), 1, 2**31,
                     whole=True, hint='An order of 2 is a bigram.')

  def pack(self, params: Table) -> Table:
    """The table as it is: there is one layout.

    Raises:
      ValueError: It is of another vocabulary, or of a lower order.
    """
    own = params.unigram.shape[-1], len(params.levels) + 1
    if own[0] != self.vocab_size or own[1] < self.order:
      raise ValueError(f'A table of {own[0]} tokens and order {own[1]}; '
                       f'allowed: {self.vocab_size} tokens and order '
                       f'{self.order} or more. Build it again.')
    return params

  def narrow(self, params: Table, tokens: Int[Array, 'K']) -> Table:
    """Refuses: a head over some tokens has nothing to save."""
    del params, tokens
    raise ValueError('Counts over part of the vocabulary; allowed: over all of '
                     'it.')

  def init(self, params: Table, prompt: types.Prompt,
           capacity: int) -> cache_lib.Cache:
    """A cache of tokens."""
    del params
    b = len(prompt.prefix)
    slots = jnp.zeros((b, capacity), jnp.int32)
    return cache_lib.Cache((slots,), jnp.zeros(b, jnp.int32))

  def extend(self, params: Table, cache: cache_lib.Cache,
             tree: types.TokenTree):
    """The last tokens of each node, the node's own first: [B, N, order - 1].

    -1 stands for what is before a text.
    """
    del params
    check.tokens_only(self, tree)
    back = jnp.arange(self.order - 1)[None, None]
    depth = tree.depth[:, :, None] - back                      # [B, N, order-1]
    line = tree.mask[:, :, None] & (
        tree.depth[:, None, None] == depth[..., None])         # [B, N, -1, N]
    row = jax.vmap(lambda tokens, at: tokens[at])
    inside = row(tree.tokens, jnp.argmax(line, -1))
    slot = cache.length[:, None, None] + depth
    before = row(cache.layers[0], jnp.maximum(slot, 0))
    found = jnp.where(depth >= 0, inside, jnp.where(slot >= 0, before, -1))
    slots = cache_lib.write(cache.layers[0], tree.tokens, cache.length)
    return found, cache.replace(layers=(slots,))

  def head(self, params: Table, hidden: Int[Array, '*axes K']
           ) -> Float[Array, '*axes V']:
    """log q, float32."""
    flat = hidden.reshape(math.prod(hidden.shape[:-1]), hidden.shape[-1])
    levels = params.levels[:self.order - 1]

    def logits(context):
      at, q = jnp.int32(0), params.unigram
      for token, level in zip(context, levels):
        at = jnp.where(at >= 0, _child(level, at, token), -1)
        kept = jnp.where(at >= 0, level.probs[at], 0)
        rest = jnp.maximum(1 - kept.sum(), 0)
        q = (q * rest).at[level.tokens[at]].add(kept)
      return jnp.log(q)

    out = jax.vmap(logits)(flat)
    return out.reshape(*hidden.shape[:-1], self.vocab_size)


def _child(level, above, token):
  """The context that is `above` behind one more token; -1 for none."""
  size, end = len(level.older), level.start[above + 1]

  def halve(_, ends):
    low, high = ends
    middle = (low + high) // 2
    less = (middle < high) & (level.older[middle % size] < token)
    return jnp.where(less, middle + 1, low), jnp.where(less, high, middle)

  steps = math.ceil(math.log2(size + 1))
  at, _ = jax.lax.fori_loop(0, steps, halve, (level.start[above], end))
  return jnp.where((at < end) & (level.older[at % size] == token), at, -1)


def build(texts: Iterable[Sequence[int]], vocab_size: int, order: int = 2, *,
          follow: int = 16, least: int = 1, discount: float = .5,
          ends: Collection[int] = ()) -> Table:
  """Counts the n-grams of texts, on the host.

  Args:
    texts: Tokens as the verifier sees them: behind the decoder start token, if
      it has one, and with the end.
    vocab_size: Of the verifier.
    order: n, the longest n-grams counted.
    follow: Tokens kept behind a context, the commonest.
    least: Times that a context must have been seen.
    discount: Taken off each count, in [0, 1): a share of the rare for the rest.
    ends: Tokens that end a text. The unigram takes them for unseen: a draft of
      the end, its likeliest token, gains nothing, as no token follows it.

  Raises:
    ValueError: A number outside its domain, no text of two tokens, or a token
      that the vocabulary does not have.
  """
  for name, number in (('vocab_size', vocab_size), ('order', order),
                       ('follow', follow), ('least', least)):
    check.interval(f'{name} of a table', number, 1, 2**31, whole=True)
  check.interval('discount', discount, 0, 1 - 1e-6)
  texts = [np.asarray(text, np.int64) for text in texts]
  texts = [text for text in texts if len(text) > 1]
  if not texts:
    raise ValueError('No text of two tokens to count; give some.')
  check.interval('Token of texts', np.concatenate(texts), 0, vocab_size - 1,
                 whole=True, hint='Use the tokenizer of the verifier.')
  text = np.concatenate(texts)
  place = np.concatenate([np.arange(len(x)) for x in texts])   # in its own text
  target = np.flatnonzero(place > 0)           # a first token follows nothing
  counts = np.bincount(text[target], minlength=vocab_size) + discount
  counts[list(ends)] = discount
  above = np.zeros(len(target), np.int64)      # the context of each target
  levels, number = [], 1
  for back in range(1, order):
    inside = place[target] >= back
    target, above = target[inside], above[inside]
    key = above * vocab_size + text[target - back]
    known, above, seen = np.unique(key, return_inverse=True,
                                   return_counts=True)
    often = seen >= least
    kept = often[above]
    above, target = (np.cumsum(often) - 1)[above[kept]], target[kept]
    known = known[often]
    start = np.searchsorted(known // vocab_size, np.arange(number + 1))
    number = len(known)
    if not number:
      break
    levels.append(Level(*map(jnp.asarray, (
        start.astype(np.int32), (known % vocab_size).astype(np.int32),
        *_following(above, text[target], number, vocab_size, follow,
                    discount)))))
  unigram = jnp.asarray(counts / counts.sum(), jnp.float32)
  return Table(unigram, (*levels, *[_empty(follow)] * (order - 1 - len(levels)))
               )


def _following(context, token, number, vocab_size, follow, discount):
  """The commonest tokens behind each context [C, M], and their shares."""
  key, count = np.unique(context * vocab_size + token, return_counts=True)
  owner, token = key // vocab_size, key % vocab_size
  order = np.lexsort((token, -count, owner))
  owner, token, count = owner[order], token[order], count[order]
  rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
  total = np.bincount(owner, count, minlength=number)
  first = rank < follow
  tokens = np.zeros((number, follow), np.int32)
  shares = np.zeros((number, follow), np.float32)
  at = owner[first], rank[first]
  tokens[at] = token[first]
  shares[at] = (count[first] - discount) / total[at[0]]
  return tokens, shares


def _empty(follow):
  """A level without contexts that can be found: no token is -2."""
  return Level(jnp.zeros(2, jnp.int32), jnp.full(1, -2, jnp.int32),
               jnp.zeros((1, follow), jnp.int32), jnp.zeros((1, follow)))
