"""Faults that were, or could have been, somebody's: each with its killing test.

Every entry changes one file of the package; `test` is what pytest must fail on.
`scripts/mutants.py` runs them, `mutants_test.py` keeps the list applicable.
"""
from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
  """`old`, which occurs once in `file`, becomes `new`; `test` must fail."""
  name: str
  file: str
  old: str
  new: str
  test: tuple[str, ...]


def _law(expression):
  """Cases of the law test; names join drafter, verifier, target and warp."""
  return 'tests/law_test.py', '-k', expression


PLAIN_CHAIN = _law('fast and Chain-Rejection-Lossless')
CHOW = _law('fast and Chain-Rejection-Chow')
FORMULAS = ('tests/targets_test.py', '-k', 'float64')
NODES = ('tests/models/equality_test.py', '-k', 'tree_nodes and t5_1_1')
CUTS = ('tests/invariance_test.py', '-k', 'eos')
CACHES = ('tests/cache_test.py', '-k', 'fresh_prefill')
MUTANTS = (
    # Acceptance, residual and bonus.
    Mutant('q and p swapped', 'decode.py', 'target(draft.prediction, p)',
           'target(p, draft.prediction) if target.uses_q else target(None, p)',
           CHOW),
    Mutant('2 % lenience', 'verify.py', 'uniform[1:] * of_law < of_pi',
           'uniform[1:] * of_law < 1.02 * of_pi', PLAIN_CHAIN),
    Mutant('residual from p instead of pi', 'decode.py',
           'jax.vmap(self.verify)(keys, draft, p, fused.pi)',
           'jax.vmap(lambda k, d, p, pi: (lambda a, b: b.replace(next_token='
           'jnp.where(b.count < d.max_depth, a.next_token, b.next_token)))('
           'self.verify(k, d, p, p.probs).replace(count=self.verify(k, d, p, '
           'pi).count), self.verify(k, d, p, pi)))(keys, draft, p, fused.pi)',
           _law('fast and Chain-Rejection-TokenV1')),
    Mutant('bonus from p instead of pi', 'decode.py',
           'draft, p, fused.pi)',
           'draft, p, fused.pi.at[:, -1].set(p.probs[:, -1]))',
           _law('fast and Chain-Rejection-TokenV1')),
    Mutant('q of the next node', 'verify.py',
           'draft.prediction.probs[node, token]\n\n\ndef leading',
           'draft.prediction.probs[node + 1, token]\n\n\ndef leading', CHOW),
    Mutant('q of another row', 'drafters/growing.py',
           'reduced.widen(lm, params, q),',
           'jax.tree.map(lambda x: jnp.roll(x, 1, 0), '
           'reduced.widen(lm, params, q)),', PLAIN_CHAIN),
    Mutant('one law for the nodes of all models', 'verify.py',
           'rest: draft.laws[m])', 'rest: draft.laws[1])',
           ('tests/drafters/specinfer_test.py', '-k', 'own_laws')),
    Mutant('nothing subtracted for a rejected sibling', 'verify.py',
           'left = jnp.where(candidate, residual(left, law), left)',
           'left = jnp.where(candidate, left, left)',
           _law('fast and Treesampled-Rejection')),
    Mutant('distinct siblings judged as i.i.d. ones', 'verify.py',
           "without(rest, token) if draft.law == 'distinct' else rest",
           'rest', _law('fast and Treedistinct')),
    Mutant('block weights not capped at 1', 'verify.py',
           '(jnp.minimum(1, w * r),) * 2', '(w * r,) * 2',
           _law('fast and Block')),
    Mutant('k-SEQ with rho = 1', 'verify.py', 'rho = _selection(q, pi, many)',
           'rho = jnp.ones(len(pi))', _law('fast and KSeq')),
    Mutant('a twin keeps no chain', 'verify.py',
           'place = jnp.where(below > i, twin, i)', 'place = i',
           ('tests/drafters/spectr_test.py', '-k', 'twin_goes')),
    Mutant('a twin goes on behind its children', 'verify.py',
           'place = jnp.where(below > i, twin, i)', 'place = twin',
           ('tests/drafters/spectr_test.py', '-k', 'children_of_its')),
    Mutant('sampled child dropped for its own q', 'drafters/growing.py',
           '(i < last) & stop(new), i + kept, last)',
           '(i < last) & (jax.vmap(lambda p, k: p[warp_lib.sample(p, k)'
           '])(new.probs, jax.vmap(jax.random.fold_in, (0, None))(keys, i))'
           ' < stop.threshold), i + kept, last)',
           _law('fast and Chain and Chow')),
    Mutant('residual of equal laws is uniform', 'warp.py',
           'jnp.where(total > 0, total, 1), pi)',
           'jnp.where(total > 0, total, 1), jnp.ones_like(pi) / pi.shape[-1])',
           ('tests/warp_test.py', '-k', 'residual')),
    # Keys.
    Mutant('one key for drafting and judging', 'decode.py',
           'propose, verify = round_keys(state.keys, state.stats.rounds)',
           'propose = verify = round_keys(state.keys, state.stats.rounds)[0]',
           PLAIN_CHAIN),
    Mutant('key reused across rounds', 'decode.py',
           'jax.random.split(jax.random.fold_in(key, i))',
           'jax.random.split(key)', PLAIN_CHAIN),
    Mutant('key reused across rows', 'decode.py',
           'jax.vmap(split, out_axes=1)(keys, rounds)',
           'jax.vmap(split, out_axes=1)(keys[jnp.zeros_like(rounds)], rounds)',
           ('tests/invariance_test.py', '-k', 'batch_mates')),
    Mutant('one uniform for both stages of a draw', 'warp.py',
           '_invert(blocks[block], uniform[1])',
           '_invert(blocks[block], uniform[0])',
           ('tests/warp_test.py', '-k', 'small_rows')),
    # Warps.
    Mutant('warped twice', 'decode.py', 'p = warp(logits)',
           'p = warp(jnp.log(warp(logits).probs))',
           _law('fast and Chain-Rejection-Chow')),
    Mutant('temperature after top-p', 'warp.py',
           'probs = _mixed(heat, logits)\n    for',
           'probs = _mixed(jnp.where(heat > 0, 1., 0.), logits)\n    for',
           ('tests/warp_test.py', '-k', 'sorting')),
    Mutant('min-p before top-p', 'warp.py',
           '(top < 1, keep_top_p, top),\n            '
           '(low > 0, keep_min_p, low),',
           '(low > 0, keep_min_p, low),\n            '
           '(top < 1, keep_top_p, top),',
           ('tests/warp_test.py', '-k', 'sorting')),
    # Rules.
    Mutant('deferral decided on warped q', 'targets/deferral.py',
           '(q.confidence < 1 - alpha)', '(q.probs.max(-1) < 1 - alpha)',
           FORMULAS),
    Mutant('OPT with TV of raw laws', 'targets/deferral.py',
           'tv = jnp.maximum(p.probs - q.probs, 0).sum(-1)',
           'tv = jnp.maximum(p.raw - q.raw, 0).sum(-1)', FORMULAS),
    Mutant('TokenV1 trusts by p', 'targets/tokenwise.py',
           'return q.raw < raw.max(-1, keepdims=True) - alpha',
           'return raw < raw.max(-1, keepdims=True) - alpha', FORMULAS),
    Mutant('published Lossy, which does not sum to 1', 'targets/lossy.py',
           'pi = kept + rejected * residual(p.probs, q.probs)',
           'pi = jnp.maximum(kept, p.probs)', FORMULAS),
    # The loop's book-keeping.
    Mutant('tokens after EOS kept', 'decode.py',
           'ending & (i <= count)', 'ending & (i == count)', CUTS),
    Mutant('cap off by one', 'decode.py',
           'state.limits - state.lengths)', 'state.limits - state.lengths + 1)',
           ('tests/invariance_test.py', '-k', 'eos_and_cap')),
    Mutant('limits of rows ignored', 'decode.py',
           'limits = jnp.minimum(limits, prompt.limits)', 'pass',
           ('tests/decode_test.py', '-k', 'own_limit and chain')),
    Mutant('one end of several', 'decode.py',
           'ending = types.among(new, ends)',
           'ending = types.among(new, ends[:1])',
           ('tests/decode_test.py', '-k', 'first_of_several')),
    Mutant('an end that is drafted is left out', 'drafters/growing.py',
           'types.among(child, ctx.ends), i + 1, last)',
           'types.among(child, ctx.ends), i, last)',
           ('tests/drafters/chain_test.py', '-k', 'behind_an_end')),
    Mutant('drafts behind an end keep their own law', 'drafters/growing.py',
           'probs=put(sure, q.probs)', 'probs=q.probs',
           ('tests/drafters/chain_test.py', '-k', 'drawn_behind_an_end')),
    Mutant('logits behind an end are those of the batch', 'drafters/growing.py',
           'logits=put(0, q.logits)', 'logits=q.logits',
           ('tests/invariance_test.py', '-k', 'behind_an_end')),
    Mutant('finished rows go on', 'decode.py',
           'emitted = jnp.where(live, cut.count + 1, 0)',
           'emitted = cut.count + 1',
           ('tests/conformance_test.py', '-k', 'done_rows and Chain')),
    Mutant('non-finite logits sampled from', 'decode.py',
           'live = ~state.done & ~broken', 'live = ~state.done',
           ('tests/decode_test.py', '-k', 'non_finite')),
    Mutant('a correction counted as bonus', 'stats.py',
           'count(complete & rejected), count(complete & ~rejected)',
           'count(complete & ~rejected), count(complete & rejected)', CUTS),
    # Caches and positions.
    Mutant('no key/value of the last accepted draft', 'drafters/growing.py',
           'leaf = len(ctx.lengths), ctx.leaf_steps',
           'leaf = len(ctx.lengths), 0', CACHES),
    Mutant('no key/value of it where the rule is traced', 'drafters/chain.py',
           'written = ctx.leaf_q and ctx.leaf_read is None',
           'written = ctx.leaf_q', CACHES),
    Mutant('no q at the leaf where the rule is traced', 'types.py',
           'return self.leaf_read.astype(jnp.int32)',
           'return jnp.zeros_like(self.leaf_read, jnp.int32)',
           ('tests/drafters/chain_test.py', '-k', 'among_others')),
    Mutant('stale key/value after the bonus token', 'models/prefill.py',
           'start = jnp.maximum(cache.length + 1 - count, 0)',
           'start = cache.length',
           CACHES),
    Mutant('accepted path of a tree not moved together', 'cache.py',
           'slots = self.end[:, None] + path',
           'slots = self.end[:, None] + jnp.arange(path.shape[1])', CACHES),
    Mutant('slot instead of position in a tree', 'cache.py',
           'position = jnp.where(inside, start + depth, slot)',
           'position = jnp.where(inside, slot, slot)', NODES),
    Mutant('position off by one', 'cache.py',
           'distance = start + tree.depth[:, :, None] - position',
           'distance = start + tree.depth[:, :, None] - position + 1',
           ('tests/models/equality_test.py', '-k', 'full_forward and t5_1_1')),
    Mutant('siblings see each other', 'cache.py',
           '(slot < start) | (inside & attends)',
           '(slot < start) | inside', NODES),
    Mutant('padding of a prompt committed', 'models/prefill.py',
           'return joined, cache.truncate(prompt.prefix_lengths - 1)',
           'return joined, cache', ('tests/invariance_test.py', '-k', 'mates')),
    Mutant('encoder padding attended to', 'models/segments.py',
           'jnp.broadcast_to((inputs > 0)[:, None], (b, n, width))',
           'jnp.broadcast_to((inputs >= 0)[:, None], (b, n, width))',
           ('tests/models/t5_test.py', '-k', 'padding')),
    Mutant('prompt lookup finds the end of the prompt', 'drafters/ngram.py',
           'jnp.where(jnp.roll(text, -1) != NONE, run, 0)',
           'jnp.where(text != NONE, run, 0)',
           ('tests/drafters/ngram_test.py',)),
    # Drafters of what the verifier knows.
    Mutant("a node read behind the root's state, not its parent's",
           'drafters/eagle_static.py', 'self.parents[1:stop]',
           '[0] * (stop - 1)',
           ('tests/drafters/eagle_test.py', '-k', 'static and toy')),
    Mutant('a candidate read behind its own state', 'drafters/eagle_tree.py',
           'types.pick(pool.states, types.pick(pool.parents, chosen))',
           'types.pick(pool.states, chosen)',
           ('tests/drafters/eagle_test.py', '-k', 'likeliest and toy')),
    Mutant('states of drafts that were rejected', 'drafters/follower.py',
           'cache.truncate(cache.length + jnp.where(live, state.count, 0))',
           'cache.truncate(cache.length + jnp.where(live, verdict.count + 1, '
           '0))', ('tests/drafters/eagle_test.py', '-k', 'chain and toy')),
    Mutant('the masks of the candidate before', 'drafters/space.py',
           'types.pick(said, feedback.verdict.count)',
           'types.pick(said, jnp.maximum(feedback.verdict.count - 1, 0))',
           ('tests/drafters/masks_test.py', '-k', 'last_accepted')),
    Mutant('the state of the root after every round', 'drafters/medusa.py',
           'types.pick(verdict.path, verdict.count)',
           'types.pick(verdict.path, 0 * verdict.count)',
           ('tests/drafters/medusa_test.py', '-k', 'heads_best and medusa')),
    Mutant('a window that sees later guesses', 'drafters/lookahead.py',
           '(i <= i[:, None])) | (', '(i >= 0)) | (',
           ('tests/drafters/guesses_test.py', '-k', 'window_sees')),
    Mutant('who drafts second has not read what was drafted',
           'drafters/horizontal.py',
           'parts.put(tokens, one.tree.tokens, ctx.lengths - 1)', 'tokens',
           ('tests/drafters/horizontal_test.py', '-k', 'has_q_of_its_model')),
    # What holds it together.
    Mutant('rules that jit may take for each other', 'struct.py',
           '  cls = dataclasses.dataclass(frozen=True)(cls)\n',
           '  from flax import struct\n  return struct.dataclass(cls)\n',
           ('tests/struct_test.py', '-k', 'structure_of_its_own')),
    Mutant('rejections counted one depth late', 'stats.py',
           'accepted + stats.rejected[..., :-1]',
           'accepted + stats.rejected[..., 1:]', ('tests/stats_test.py',)))
