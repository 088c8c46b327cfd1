"""Kinds of drafters: how each is made for a pair of models; what it reads."""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import pathlib
from typing import Any, Callable

from spec_cascades import verify
from spec_cascades.drafters import adaptive
from spec_cascades.drafters import chain
from spec_cascades.drafters import early_exit
from spec_cascades.drafters import horizontal
from spec_cascades.drafters import jacobi
from spec_cascades.drafters import lookahead
from spec_cascades.drafters import ngram
from spec_cascades.drafters import null
from spec_cascades.drafters import ouroboros
from spec_cascades.drafters import phrases
from spec_cascades.drafters import pipelined
from spec_cascades.drafters import recycling
from spec_cascades.drafters import retrieval
from spec_cascades.drafters import specinfer
from spec_cascades.drafters import spectr
from spec_cascades.drafters import tracking
from spec_cascades.drafters import tree
from spec_cascades.drafters import triforce
from spec_cascades.drafters import vertical
from spec_cascades.evaluation import attached
from spec_cascades.evaluation import costs
from spec_cascades.evaluation import counted
from spec_cascades.evaluation import datastores
from spec_cascades.evaluation import estimated
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.evaluation import shapes
from spec_cascades.evaluation import skipping
from spec_cascades.models import counts
from spec_cascades.models import gemma
from spec_cascades.models import partial
from spec_cascades.models import skip

CHAIN, NULL = 'chain', 'null'


@dataclasses.dataclass(frozen=True)
class Kind:
  """How drafters of one name are made.

  Attributes:
    make: (pair, gamma, what was read) -> a drafter and its parameters.
    q: Whether it has q, which rules may read; of heads, where one is spare.
    lazy: Whether rules that read q and rules that don't may share a program:
      it takes the step for q at a leaf only where the rule at hand reads it.
    small: Whether it takes the pair's small model; a model that it may read
      takes its place.
    read: (path, pair) -> what it reads, and SHA-256 of that.
    needs: What the path has to be of, if there has to be one.
    even: Whether its drafts take the same time whatever they are: they are
      never empty or shorter, and are not decoded by a loop of their own.
    cost: Of the calls that a round makes, on a slice of TPUs; None if that does
      not follow from their number.
    judge: The verifier that its drafts are published with.
    kept: The share of the verifier's sublayers that a call goes through, by
      what the path is of; None if that is not known. Then `cost` follows.
    own_length: Whether what it reads says how far to draft, not gamma.
    remembers: Whether a draft depends on earlier rounds, not on the text alone.
  """
  make: Callable[[pairs.Pair, int, Any], tuple[Any, Any]]
  q: bool = True
  lazy: bool = False
  small: bool = True
  read: Callable[[str, pairs.Pair], tuple[Any, str]] | None = None
  needs: str = ''
  even: bool = True
  cost: estimated.Cost | None = estimated.small
  judge: Any = verify.Rejection()
  kept: Callable[[str], float | None] | None = None
  own_length: bool = False
  remembers: bool = False

  def cost_of(self, path: str) -> estimated.Cost | None:
    """Of the calls of a round, on a slice; None if it is not known."""
    if self.kept is None:
      return self.cost
    share = self.kept(path)
    return None if share is None else estimated.part(share)


def _chain(pair, gamma, part):
  """The small model, token by token."""
  del part
  return chain.Chain(pair.drafter.lm, gamma), pair.drafter.params


def _adaptive(pair, gamma, times):
  """As many of gamma tokens as acceptance and step times make best."""
  drafted, params = _chain(pair, gamma, None)
  cost = times.drafter / times.block(gamma + 1)
  return adaptive.Adaptive(drafted, cost), params


def _tracking(pair, gamma, part):
  """Of gamma tokens, those while q is sure by a threshold that adapts."""
  drafted, params = _chain(pair, gamma, part)
  return tracking.Tracking(drafted), params


def _cascade(pair, gamma, part):
  """CS Drafting, vertically: prompt lookup drafts for the small model."""
  del part
  made = vertical.Vertical(pair.drafter.lm, ngram.NGram(gamma), gamma)
  return made, (pair.drafter.params, None)


def _horizontal(pair, gamma, part):
  """CS Drafting, both ways: the cascade's gamma tokens, and looked-up ones."""
  first, params = _cascade(pair, gamma, part)
  return horizontal.Horizontal(first, ngram.NGram(gamma)), (params, None)


def _ouroboros(pair, gamma, store):
  """gamma tokens in phrases; a datastore's commonest are there from the start.
  """
  order = min(4, gamma + 2)
  pool = lookahead.Lookahead(pair.verifier.lm.vocab_size, 5, order, 5, 256)
  warm = store and phrases.commonest(store.tokens, order, 128, int(store.end))
  made = ouroboros.Ouroboros(pair.drafter.lm, pool, gamma)
  return made, (pair.drafter.params, warm)


def _tree(pair, gamma, parents):
  """A chain of gamma tokens, each beside a second choice; or a given tree."""
  parents = parents or (
      -1, *(max(2 * i - 1, 0) for i in range(gamma) for _ in range(2)))
  return tree.Tree(pair.drafter.lm, parents), pair.drafter.params


def _spectr(pair, gamma, part):
  """Three chains of gamma tokens, drawn independently, for k-SEQ."""
  del part
  return spectr.SpecTr(pair.drafter.lm, 3, gamma), pair.drafter.params


def _specinfer(pair, gamma, other):
  """Chains of the pair's small model and of another one, merged."""
  models = pair.drafter, other
  made = specinfer.SpecInfer(tuple(model.lm for model in models),
                             (tuple(range(-1, gamma)),) * 2)
  return made, tuple(model.params for model in models)


def _counts(pair, gamma, table):
  """Chains of a table of n-grams."""
  lm = counts.Counts(pair.verifier.lm.vocab_size, len(table.levels) + 1)
  return chain.Chain(lm, gamma), lm.pack(table)


def _lookahead(pair, gamma, part):
  """n-grams of gamma + 1 tokens that the verifier made in earlier rounds."""
  del part
  size = pair.verifier.lm.vocab_size
  return lookahead.Lookahead(size, window=5, order=gamma + 1, guesses=5), None


def _recycling(pair, gamma, part):
  """A tree, gamma deep, of the verifier's latest best successors."""
  del part
  size = pair.verifier.lm.vocab_size
  return recycling.Recycling(size, (4, 2, *(1,) * gamma)[:gamma]), None


def _rest(pair, gamma, store):
  """Up to gamma tokens that a datastore has behind the text, in a tree."""
  del pair
  return retrieval.Retrieval(gamma, nodes=2 * gamma + 1), store


def _skip(pair, gamma, part):
  """A third of the verifier's own decoder layers, at even distances."""
  del part
  depth = skip.layers_of(meshes.bare(pair.verifier.lm))
  lm, params = _of_verifier(pair, skip.spread(depth, -(-depth // 3)))
  return chain.Chain(lm, gamma), params


def _exit(pair, gamma, part):
  """The first third of the verifier's layers, on its own cache."""
  del part
  count = -(-skip.layers_of(meshes.bare(pair.verifier.lm)) // 3)
  lm, params = _of_verifier(pair, range(count))
  return early_exit.EarlyExit(chain.Chain(lm, gamma), count), params


def _pipelined(pair, gamma, part):
  """The gamma best tokens that the lower half of the layers names."""
  del part
  count = -(-skip.layers_of(meshes.bare(pair.verifier.lm)) // 2)
  lm, params = _of_verifier(pair, range(count))
  choices = min(gamma, pair.verifier.lm.vocab_size)
  return pipelined.Pipelined(lm, count, choices), params


def _retrieved(pair, gamma, part):
  """The verifier itself, on chunks of its cache and the recent tokens."""
  del part
  _check_cache(pair.verifier.lm)
  return (triforce.TriForce(pair.verifier.lm, gamma),
          (pair.verifier.params, None))


def _triforce(pair, gamma, part):
  """That, for which the small model drafts with a streaming cache."""
  made, (params, _) = _retrieved(pair, gamma, part)
  _check_cache(pair.drafter.lm)
  small = chain.Chain(partial.Streaming(pair.drafter.lm), gamma)
  return made.replace(drafter=small), (params, pair.drafter.params)


def _check_cache(lm):
  if not isinstance(lm, gemma.Gemma):
    raise ValueError(f'Got a {type(lm).__name__} to draft on part of its cache;'
                     ' allowed: decoder-only models, whole and on one device.')


def _sublayers(pair, gamma, skipped):
  """Draft & Verify: the verifier without the sublayers that a search chose."""
  lm = skip.without(meshes.bare(pair.verifier.lm), skipped)
  lm = meshes.placed(lm, meshes.layout_of(pair.verifier.lm))
  return tracking.Tracking(chain.Chain(lm, gamma)), attached.own(pair)


def _of_verifier(pair, layers):
  lm, params = meshes.bare(pair.verifier.lm), attached.own(pair)
  lm, params = skip.shallow(lm, params, layers)
  return meshes.placed(lm, meshes.layout_of(pair.verifier.lm)), params


def _datastore(path, pair):
  return datastores.read(path, pair.vocabulary_sha256,
                         pair.verifier.lm.vocab_size)


def _file(read):
  """A reader of one file."""
  def found(path, pair):
    del pair
    place = pathlib.Path(path).expanduser()
    if not place.is_file():
      raise ValueError(f'No file at {path}; check the path.')
    with place.open('rb') as file:
      return read(place), hashlib.file_digest(file, 'sha256').hexdigest()
  return found


def _skipped(path, pair):
  found = skipping.read(path, pair.verifier.sha256,
                        meshes.bare(pair.verifier.lm))
  return found, hashlib.sha256(repr(found).encode()).hexdigest()


def replaces(kind: Kind) -> bool:
  """Whether what it reads takes the small model's place."""
  return kind.read is attached.read


def trained(kind: Kind) -> bool:
  """Whether what it reads was trained beside a verifier, which it has to fit.
  """
  return kind.read in (attached.read, attached.masks)


def _attached(make, name, **options):
  """A kind of heads, or of a layer, which says whether it is of that name."""
  return Kind(functools.partial(make, name=name), read=attached.read, **options)


_WHOLE = estimated.part(1.)
_MASKS = dict(small=False, read=attached.masks, cost=_WHOLE,
              needs='a run of gin/train/pass.gin or space.gin')
_LOOKED_UP = dict(small=False, cost=estimated.nothing)
KINDS = dict(
    null=Kind(lambda pair, gamma, part: (null.Null(), None), q=False,
              **_LOOKED_UP),
    chain=Kind(_chain, lazy=True),
    tracking=Kind(_tracking, lazy=True, even=False, remembers=True),
    cascade=Kind(_cascade, even=False),
    horizontal=Kind(_horizontal, q=False, even=False),
    ouroboros=Kind(_ouroboros, read=_datastore, even=False, remembers=True),
    adaptive=Kind(_adaptive, read=_file(lambda x: costs.read(x).times),
                  needs='step times of scripts/benchmark.py steps --output',
                  lazy=True, even=False, remembers=True),
    tree=Kind(_tree, read=_file(lambda x: shapes.read(x).parents),
              own_length=True),
    spectr=Kind(_spectr, judge=verify.KSeq()),
    specinfer=Kind(_specinfer, read=attached.whole,
                   needs='a second small model'),
    counts=Kind(_counts, read=_file(counted.read),
                needs='a table of scripts/count_table.py', **_LOOKED_UP),
    medusa=_attached(attached.medusa_tree, 'medusa', cost=estimated.heads),
    typical=_attached(attached.medusa_tree, 'medusa', cost=estimated.heads,
                      judge=verify.Typical()),
    **{'hydra++': _attached(attached.hydra_tree, 'hydra++',
                            cost=estimated.layer_and_heads)},
    eagle=_attached(attached.eagle_chain, 'eagle', cost=estimated.layer),
    eagle_static=_attached(attached.eagle_tree_of_ranks, 'eagle_static',
                           cost=estimated.layer),
    eagle_tree=_attached(attached.eagle_grown, 'eagle_tree',
                         cost=estimated.layer),
    eagle3=_attached(attached.eagle_chain, 'eagle3', cost=estimated.layer),
    eagle3_tree=_attached(attached.eagle_grown, 'eagle3_tree',
                          cost=estimated.layer),
    ngram=Kind(lambda pair, gamma, part: (ngram.NGram(gamma), None), q=False,
               even=False, **_LOOKED_UP),
    jacobi=Kind(lambda pair, gamma, part: (jacobi.Jacobi(gamma), None),
                q=False, remembers=True, **_LOOKED_UP),
    lookahead=Kind(_lookahead, q=False, remembers=True, **_LOOKED_UP),
    recycling=Kind(_recycling, q=False, remembers=True, **_LOOKED_UP),
    space=Kind(attached.masks_behind_each, remembers=True, **_MASKS),
    rest=Kind(_rest, q=False, read=_datastore, even=False,
              needs='a datastore of scripts/build_datastore.py', **_LOOKED_UP),
    skip=Kind(_skip, lazy=True, small=False, cost=estimated.part(1 / 3)),
    exit=Kind(_exit, small=False, cost=estimated.part(1 / 3)),
    pipelined=Kind(_pipelined, small=False, cost=estimated.part(1 / 2)),
    retrieved=Kind(_retrieved, small=False, even=False, cost=_WHOLE),
    triforce=Kind(_triforce, even=False, cost=None),
    sublayers=Kind(_sublayers, lazy=True, small=False, read=_skipped,
                   needs='what scripts/search_layers.py wrote',
                   even=False, cost=None, kept=skipping.kept,
                   remembers=True),
    **{'pass': Kind(attached.masks_behind_root, **_MASKS)})
