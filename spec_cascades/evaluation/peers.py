"""The same T5 weights in transformers, to be timed in turn with ours.

Needs torch and transformers (requirements-test.txt); importing this does not.
"""
from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import types
from spec_cascades import warp
from spec_cascades.checkpoints import hub_writing
from spec_cascades.checkpoints import huggingface
from spec_cascades.evaluation import benchmarks
from spec_cascades.models import prefill
from spec_cascades.models import products
from spec_cascades.models import t5


@dataclasses.dataclass(frozen=True)
class Peer:
  """Our model and theirs, with the same weights."""
  ours: benchmarks.Loaded
  theirs: Any
  width: int = 64                       # encoder length

  def decode(self, tokens: int) -> Callable[[], np.ndarray]:
    """Their greedy decoding of so many tokens, encoder included."""
    import torch  # pylint: disable=g-import-not-at-top
    from transformers import cache_utils  # pylint: disable=g-import-not-at-top
    ids = self._ids()

    def generate():
      # One that `generate` makes has as many layers as the encoder.
      cache = cache_utils.EncoderDecoderCache(
          cache_utils.DynamicCache(), cache_utils.DynamicCache())
      with torch.inference_mode():
        return self.theirs.generate(
            ids, max_new_tokens=tokens, min_new_tokens=tokens,
            do_sample=False, use_cache=True, past_key_values=cache).numpy()[0]

    return generate

  def their_steps(self, count: int, committed: int) -> Callable[[], Any]:
    """`count` cached decoder steps of theirs behind `committed` tokens.

    Each reads the argmax of the one before; the encoder is left out. The cache
    grows meanwhile and is cropped at the end. A call returns the last token.
    """
    import torch  # pylint: disable=g-import-not-at-top
    start = torch.ones((1, committed), dtype=torch.long)
    with torch.inference_mode():
      encoded = self.theirs.encoder(self._ids())
      past = self.theirs(encoder_outputs=encoded, decoder_input_ids=start,
                         use_cache=True).past_key_values

    def run():
      token = start[:, :1]
      with torch.inference_mode():
        for _ in range(count):
          out = self.theirs(encoder_outputs=encoded, decoder_input_ids=token,
                            past_key_values=past, use_cache=True)
          token = out.logits[:, -1].argmax(-1, keepdim=True)
        past.self_attention_cache.crop(-count)
      return token.numpy()

    return run

  def our_steps(self, count: int, committed: int) -> Callable[[], Any]:
    """The same of ours, each a call from Python; the cache is donated."""
    lm, packed = self.ours.lm, self.ours.packed
    prompt = benchmarks.prompt_of(1, self.width).replace(
        prefix=jnp.ones((1, committed + 1), jnp.int32),
        prefix_lengths=jnp.full(1, committed + 1, jnp.int32))
    read = jax.jit(prefill.prefill, static_argnums=(0, 3))
    held = [read(lm, packed, prompt, committed + count)[1]]
    held = jax.tree.map(jnp.copy, held)      # it holds the prompt's arrays

    def run():
      token, start = prompt.prefix[:, :1], jnp.full(1, committed, jnp.int32)
      cache = held.pop().truncate(start)
      for _ in range(count):
        token, cache = _call(lm, packed, cache, token)
      held.append(cache)
      return token

    return run

  def _ids(self):
    import torch  # pylint: disable=g-import-not-at-top
    inputs = benchmarks.prompt_of(1, self.width).inputs
    return torch.from_numpy(np.array(inputs)).long()


def random(config: t5.T5Config, seed: int = 0) -> Peer:
  """A T5 with random weights, in both libraries."""
  lm = t5.T5(config)
  return of(lm, lm.init_params(jax.random.key(seed)))


def of(lm: t5.T5, params: Any) -> Peer:
  """A T5 with these parameters in checkpoint layout, in both libraries."""
  import torch  # pylint: disable=g-import-not-at-top
  import transformers  # pylint: disable=g-import-not-at-top
  told = hub_writing.describe(lm.config)
  told.pop('model_type')
  theirs = transformers.T5ForConditionalGeneration(
      transformers.T5Config(**told | dict(eos_token_id=None))).eval()
  if not lm.config.logits_via_embedding:
    # Version 5 ties the head to the embeddings whatever it is told.
    theirs.lm_head.weight = torch.nn.Parameter(theirs.shared.weight.clone())
  state = huggingface.t5_state_dict(params, lm.config)
  theirs.load_state_dict(
      {k: torch.from_numpy(np.array(v)) for k, v in state.items()},
      strict=False)
  return Peer(benchmarks.Loaded(
      lm, products.compacted(lm.pack(params))), theirs)


def check(*names: str) -> None:
  """Raises ValueError unless transformers and what it needs are installed."""
  missing = [name for name in ('torch', 'transformers', *names)
             if importlib.util.find_spec(name) is None]
  if missing:
    raise ValueError(f'{", ".join(missing)} is not installed; what is compared '
                     'with transformers needs requirements-test.txt.')


@jax.jit(static_argnums=0, donate_argnums=2)
def _call(lm, packed, cache, token):
  hidden, cache = lm.extend(packed, cache, types.chain(token))
  token = warp.argmax(lm.head(packed, hidden))
  return token, cache.truncate(cache.length + 1)


def versions() -> str:
  """Of transformers and torch."""
  import torch  # pylint: disable=g-import-not-at-top
  import transformers  # pylint: disable=g-import-not-at-top
  return (f'transformers {transformers.__version__} '
          f'(torch {torch.__version__})')
