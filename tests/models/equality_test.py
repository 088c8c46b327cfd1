"""A block at once, single steps and one full forward pass agree."""
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spec_cascades import types
from spec_cascades.models import kernels
from spec_cascades.models import prefill
from tests.common import assert_same_slots
from tests.models import tiny

LENGTHS = np.array([4, 9, 6])      # of the prefixes; the last one is the root
ROWS, CAPACITY = len(LENGTHS), 24
# The long path starts at node 2: its slots and positions differ.
PARENTS = (-1, 0, 0, 2, 1, 3, 5, 6)
N = len(PARENTS)
PATH = (0, 2, 3, 5)                # of nodes that are committed
TOKENS = np.random.default_rng(1).integers(1, tiny.VOCAB, (ROWS, 20))

@functools.partial(jax.jit, static_argnums=0)
def score(lm, params, cache, nodes):
  hidden, cache = lm.extend(params, cache, nodes)
  return lm.head(params, hidden), cache


@functools.partial(jax.jit, static_argnums=(0, 3))
def read(lm, params, prompt, chunk=512):
  return prefill.prefill(lm, params, prompt, CAPACITY, chunk=chunk)


def prompt(inputs, rows=slice(None), width=9):
  given = None if inputs is None else inputs[rows]
  return types.Prompt(jnp.asarray(TOKENS[rows, :width]),
                      jnp.asarray(LENGTHS[rows]), given)


@functools.cache
def setup(name):
  """Model, checkpoint and decode parameters, inputs, cache, all logits."""
  lm = tiny.LMS[name]
  plain, inputs = tiny.params_of(lm), tiny.inputs_of(lm)
  packed = lm.pack(plain)
  _, cache = read(lm, packed, prompt(inputs))
  return lm, plain, packed, inputs, cache, full(lm, plain, inputs, TOKENS)


def full(lm, params, inputs, tokens):
  """Logits [B, L, V] of a full forward pass, in the shape of all paths."""
  return paths_forward(lm, params, inputs,
                       np.repeat(tokens[:, None], N, 1))[:, 0]


def paths_forward(lm, params, inputs, texts):
  """Logits of texts [B, N, L], in one program per model."""
  b, n, width = texts.shape
  spread = None if inputs is None else jnp.repeat(inputs, n, 0)
  flat = jnp.asarray(texts.reshape(b * n, width))
  logits = np.asarray(tiny.forward(lm, params, spread, flat))
  return logits.reshape(b, n, width, -1)


def at(rows, start, n):
  """rows[b, start[b] : start[b] + n] for every b."""
  index = np.asarray(start)[:, None] + np.arange(n)
  return np.take_along_axis(np.asarray(rows), index.reshape(
      index.shape + (1,) * (np.ndim(rows) - 2)), 1)


def path_to(node):
  return () if node < 0 else path_to(PARENTS[node]) + (node,)


def along_paths(lm, params, inputs, nodes):
  """Logits at every node, from a full forward pass over its own path."""
  ends, texts = np.zeros((ROWS, N), int), np.repeat(TOKENS[:, None], N, 1)
  for b, start in enumerate(LENGTHS - 1):
    for node in range(N):
      path = list(path_to(node))
      texts[b, node, start:start + len(path)] = nodes[b, path]
      ends[b, node] = start + len(path) - 1
  logits = paths_forward(lm, params, inputs, texts)
  return np.take_along_axis(logits, ends[..., None, None], 2)[:, :, 0]


def random_tree():
  nodes = np.random.default_rng(2).integers(1, tiny.VOCAB, (ROWS, N))
  nodes[:, 0] = at(TOKENS, LENGTHS - 1, 1)[:, 0]
  return nodes


every_model = pytest.mark.parametrize('name', tiny.LMS)


@pytest.mark.skipif(kernels.library() is None, reason='There is no C compiler.')
def test_both_kinds_of_attention_are_compared():
  taken = {name: kernels.attends(lm.config.head_dim)
           for name, lm in tiny.LMS.items()}
  assert taken['t5_1_1'] and taken['gemma3'] and not all(taken.values())


@every_model
def test_chain_equals_steps_and_full_forward(name):
  lm, _, params, _, cache, logits = setup(name)
  block = jnp.asarray(at(TOKENS, LENGTHS - 1, N))
  got, _ = score(lm, params, cache, types.chain(block))
  tiny.assert_near(got, at(logits, LENGTHS - 1, N))
  steps = []
  for i in range(N):
    step, cache = score(lm, params, cache, types.chain(block[:, i:i + 1]))
    cache = cache.truncate(cache.length + 1)
    steps.append(step)
  tiny.assert_near(jnp.concatenate(steps, 1), got)


@every_model
def test_tree_nodes_equal_their_own_paths(name):
  lm, plain, params, inputs, cache, _ = setup(name)
  nodes = random_tree()
  tree = types.tree(jnp.asarray(nodes), PARENTS)
  want = along_paths(lm, plain, inputs, nodes)
  packed, _ = score(lm, params, cache, tree)
  unpacked, _ = score(lm, plain, cache, tree)
  tiny.assert_near(packed, want)
  tiny.assert_near(unpacked, want)


@every_model
def test_committed_path_equals_the_text_it_spells(name):
  lm, plain, params, inputs, cache, _ = setup(name)
  nodes, counts = random_tree(), np.array([4, 2, 3])
  _, cache = score(lm, params, cache, types.tree(jnp.asarray(nodes), PARENTS))
  path = jnp.broadcast_to(jnp.asarray(PATH), (ROWS, len(PATH)))
  cache = cache.commit(path, jnp.asarray(counts))
  text = TOKENS.copy()
  for b, (start, count) in enumerate(zip(LENGTHS - 1, counts)):
    text[b, start:start + count] = nodes[b, PATH[:count]]
  roots = LENGTHS - 1 + counts
  got, _ = score(lm, params, cache,
                 types.chain(jnp.asarray(at(text, roots, N))))
  logits = full(lm, plain, inputs, text)
  tiny.assert_near(got, at(logits, roots, N))


@pytest.mark.parametrize('name', ('t5_1_1', 'gemma2', 'gemma3'))
def test_prefill_in_chunks_equals_whole_prefill(name):
  lm, _, params, inputs, _, _ = setup(name)
  hidden, whole = read(lm, params, prompt(inputs))
  chunked, pieces = read(lm, params, prompt(inputs), 3)
  np.testing.assert_allclose(chunked, hidden, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(pieces.length, LENGTHS - 1)
  assert_same_slots(pieces, whole, 1e-5)


@pytest.mark.parametrize('name', ('t5_1_1', 'gemma3'))
def test_a_row_alone_and_unpadded_scores_the_same(name):
  lm, _, params, inputs, _, logits = setup(name)
  row = slice(2, 3)
  alone = None if inputs is None else inputs[:, :int((inputs[2] > 0).sum())]
  _, cache = read(lm, params, prompt(alone, row, LENGTHS[2]))
  block = jnp.asarray(at(TOKENS[row], LENGTHS[row] - 1, N))
  got, _ = score(lm, params, cache, types.chain(block))
  tiny.assert_near(got, at(logits[row], LENGTHS[row] - 1, N))


@pytest.mark.parametrize('whole', (False, True))
@pytest.mark.parametrize('name', ('t5_1_0', 'gemma2', 'llama3', 'qwen2'))
def test_bfloat16_activations_stay_near(name, whole):
  """With norms and biases of float32, or all parameters in bfloat16."""
  lm, plain, _, inputs, _, logits = setup(name)
  narrow = tiny.in_bfloat16(lm)
  params = narrow.pack(jax.tree.map(
      lambda x: x.astype(jnp.bfloat16), plain) if whole else plain)
  _, cache = read(narrow, params, prompt(inputs))
  assert {x.dtype for x in jax.tree.leaves(cache.layers)} == {
      jnp.dtype('bfloat16')}
  block = jnp.asarray(at(TOKENS, LENGTHS - 1, N))
  got, _ = score(narrow, params, cache, types.chain(block))
  want = at(logits, LENGTHS - 1, N)
  assert got.dtype == want.dtype == jnp.float32
  assert np.abs(got - want).mean() < .05 * np.abs(want).mean()
