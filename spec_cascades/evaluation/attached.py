"""Drafters of what was trained beside a verifier: heads, layers and masks.

They read a run, its export, or the part of one without its verifier; such a
part shares the parameters of the pair's verifier, which has to be its own.
"""
from __future__ import annotations

import dataclasses
import functools
import pathlib
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from spec_cascades import sharding
from spec_cascades.checkpoints import beside
from spec_cascades.drafters import eagle
from spec_cascades.drafters import eagle_static
from spec_cascades.drafters import eagle_tree
from spec_cascades.drafters import hydra_plus
from spec_cascades.drafters import masked
from spec_cascades.drafters import medusa
from spec_cascades.drafters import paths
from spec_cascades.drafters import space
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import pairs
from spec_cascades.models import features
from spec_cascades.models import heads
from spec_cascades.models import masks as masks_lib
from spec_cascades.models import products


# How often a state's best tokens are taken to be right, for a static tree.
RANKS = .7, .12, .05, .03


@dataclasses.dataclass(frozen=True)
class Part:
  """What was trained beside the pair's verifier, without the verifier.

  Attributes:
    name: To show.
    heads: Its configuration.
    checkpoint: Its parameters in checkpoint layout, in the pair's dtype.
    layout: Where the verifier lies, if on a mesh.
  """
  name: str
  heads: Any
  checkpoint: Any = dataclasses.field(repr=False)
  layout: sharding.Layout | None = None

  @functools.cached_property
  def params(self) -> Any:
    """Its parameters in decode layout, made once: every program shares them.

    On a mesh they are whole on each device.
    """
    if self.layout is None:
      return products.compacted(products.pack(self.checkpoint))
    packed = products.pack(self.checkpoint, cut=True)
    return sharding.put(packed, self.layout.replace('data').parameters(packed))


def whole(path: str, pair: pairs.Pair) -> tuple[pairs.Model, str]:
  """A model of the pair's vocabulary, in the pair's dtype, and its SHA-256.

  Raises:
    ValueError: There is none at the path, or it has another vocabulary.
  """
  dtype = meshes.bare(pair.verifier.lm).config.dtype
  found = pairs.load(path, None, dtype=dtype)
  spelt = lambda x: pairs.pieces_digest(x.vocabulary, x.verifier.lm.vocab_size)
  if found.vocabulary_sha256 != pair.vocabulary_sha256 and (
      spelt(found) != spelt(pair)):                    # a run, or another file
    raise ValueError(f'{path} has another vocabulary than the pair; allowed: '
                     'models with the same one.')
  model = pairs.sharing(pair.verifier, found.verifier)
  if not isinstance(model.lm, heads.Beside):           # a small model, then
    layout = meshes.layout_of((pair.drafter or pair.verifier).lm)
    model = dataclasses.replace(model, lm=meshes.placed(model.lm, layout))
  return model, found.verifier.sha256


def read(path: str, pair: pairs.Pair) -> tuple[pairs.Model | Part, str]:
  """A model, or a part of the pair's verifier, and its SHA-256.

  Raises:
    ValueError: See `whole`; or it is damaged or of another verifier.
  """
  place, own = pathlib.Path(path).expanduser(), pair.verifier
  if not beside.recognises(place):
    found = whole(path, pair)
    _check_beside(path, found[0], own)
    return found
  found = beside.read(place, dtype=meshes.bare(own.lm).config.dtype)
  if found.verifier.sha256 != own.sha256:
    raise ValueError(
        f'{path} was trained beside {found.verifier.name} (SHA-256 '
        f'{found.verifier.sha256[:12]}), but the verifier is {own.name} '
        f'({own.sha256[:12]}); give the one that it was trained beside, or '
        'train a part for this one.')
  return Part(pairs.shown(path), found.heads, found.params,
              meshes.layout_of(own.lm)), found.sha256


def _check_beside(path, model, verifier):
  """Refuses what was trained beside a verifier with other parameters."""
  if not isinstance(model.lm, heads.Beside) or verifier.checkpoint is None:
    return                             # told elsewhere, or packed before
  whole, other = model.unpacked(), verifier.unpacked()
  if not pairs.equal(whole['model'], other.get('model', other)):
    raise ValueError(
        f'{path} was trained beside another verifier than {verifier.name}, to '
        f'whose states and words it does not fit; give --verifier {path}, or '
        'what was trained beside this one.')


def placed(pair: pairs.Pair, mesh: meshes.Mesh) -> pairs.Pair:
  """A pair that was read for one device, and what drafts for it, on a mesh.

  Raises:
    ValueError: Parameters were packed before, or there are too few devices.
  """
  layouts = mesh.layouts()
  if layouts is None:
    return pair
  large = pairs.moved(pair.verifier, layouts[0])
  small = pair.drafter and pairs.moved(pair.drafter, layouts[1])
  beside_it = layouts[1] if small else layouts[0]      # see `whole`

  def part(given):
    if isinstance(given, Part):
      return dataclasses.replace(given, layout=layouts[0])
    if isinstance(given, pairs.Model) and not isinstance(
        given.lm, heads.Beside):
      return pairs.moved(given, beside_it)
    return given
  return dataclasses.replace(pair, verifier=large, drafter=small, parts={
      name: dataclasses.replace(x, params=part(x.params))
      for name, x in pair.parts.items()})


def masks(path: str, pair: pairs.Pair) -> tuple[Any, str]:
  """Configuration and embeddings [K, E] of masks, and a SHA-256.

  Weights beside them are let go.

  Raises:
    ValueError: See `read`; or there are no masks.
  """
  found, sha256 = read(path, pair)
  alone = isinstance(found, Part)
  config = found.heads if alone else getattr(found.lm, 'heads', None)
  if not isinstance(config, masks_lib.MasksConfig):
    raise ValueError(f'{path} has no mask tokens; give a run of '
                     'gin/train/pass.gin or space.gin, or its export.')
  params = found.checkpoint if alone else found.unpacked()['heads']
  return (config, jnp.asarray(params['embedding'])), sha256


def medusa_tree(pair: pairs.Pair, gamma: int, given: Any, name: str
                ) -> tuple[Any, Any]:
  """The tree of trained heads down to gamma; their chain if none was chosen."""
  return _heads(medusa.Medusa, pair, gamma, given, name)


def hydra_tree(pair: pairs.Pair, gamma: int, given: Any, name: str
               ) -> tuple[Any, Any]:
  """The same of heads behind a prefix layer."""
  return _heads(hydra_plus.HydraPlus, pair, gamma, given, name)


def eagle_chain(pair: pairs.Pair, gamma: int, given: Any, name: str
                ) -> tuple[Any, Any]:
  """gamma tokens of a layer that predicts the verifier's states."""
  lm = _model(pair, given, name)
  return eagle.Eagle(lm, gamma), _params(pair, given)


def eagle_tree_of_ranks(pair: pairs.Pair, gamma: int, given: Any, name: str
                        ) -> tuple[Any, Any]:
  """The tree of 16 drafts down to gamma that would be best if each state's best
  tokens were right as often as `RANKS` says, wherever it stands."""
  lm = _model(pair, given, name)
  ranks = RANKS[:lm.vocab_size]
  nodes = min(16, sum(len(ranks)**depth for depth in range(1, gamma + 1)))
  shape = paths.sparse(np.array([ranks] * gamma), nodes)
  return eagle_static.EagleStatic(lm, paths.parents(shape)), _params(
      pair, given)


def eagle_grown(pair: pairs.Pair, gamma: int, given: Any, name: str
                ) -> tuple[Any, Any]:
  """The 16 likeliest drafts of such a layer, down to gamma; 4 a level grow.

  None is deeper than 16, however large gamma is.
  """
  lm = _model(pair, given, name)
  nodes = min(16, 16 * gamma - 12)
  return eagle_tree.EagleTree(lm, min(gamma, nodes), 4, nodes), _params(
      pair, given)


def masks_behind_root(pair: pairs.Pair, gamma: int, given: Any
                      ) -> tuple[Any, Any]:
  """gamma tokens of a pass with trained masks behind the root."""
  lm, params = _masked(pair, given)
  return masked.PaSS(lm, gamma), params


def masks_behind_each(pair: pairs.Pair, gamma: int, given: Any
                      ) -> tuple[Any, Any]:
  """gamma tokens of masks behind each candidate of the round before."""
  lm, params = _masked(pair, given)
  return space.Space(lm, gamma), params


def _heads(kind, pair, gamma, given, name):
  lm = _model(pair, given, name)
  chosen = tuple(x for x in lm.heads.paths if len(x) <= gamma)
  if not chosen:
    chosen = paths.cartesian((1,) * min(gamma, lm.heads.count))
    # Explicitly, so that no line of ours is quoted behind it.
    warnings.warn_explicit(
        f'No tree was chosen for the heads of {(given or pair.drafter).name}, '
        f'so that {name} drafts a chain of {len(chosen)}. Choose one with '
        'scripts/calibrate_heads.py.', UserWarning, 'spec_cascades', 1)
  return kind(lm, chosen), _params(pair, given)


def _model(pair, given, name):
  """What drafts, if it was trained for that; no parameters are touched."""
  given = given or pair.drafter
  lm = given.lm if isinstance(given, pairs.Model) else features.beside(
      meshes.bare(pair.verifier.lm), given.heads)
  if not isinstance(lm, heads.Beside):
    raise ValueError(f'{given.name} was not trained beside the verifier; give '
                     'a run of gin/train/medusa.gin, hydra_plus.gin, eagle.gin '
                     'or eagle3.gin, or its export, as medusa:PATH, '
                     'hydra++:PATH, eagle:PATH or eagle3:PATH. Those of the '
                     'shipped verifier came along, in '
                     'spec_cascades/assets/debian_ende/parts.')
  if name not in lm.heads.drafters:
    raise ValueError(f'{given.name} was not trained for this drafter; allowed '
                     f'with it: {" or ".join(lm.heads.drafters)}.')
  return lm


def _params(pair, given):
  """Parameters of what drafts; a part shares those of the verifier."""
  if isinstance(given, Part):
    return dict(model=own(pair), heads=given.params)
  return (given or pair.drafter).params


def _masked(pair, given):
  """The pair's own verifier and masks that were trained beside it."""
  config, table = given
  lm, model = meshes.bare(pair.verifier.lm), own(pair)
  like = masks_lib.Masked(lm, config).state(dict(model=model))
  if table.shape[1:] != like.shape:
    raise ValueError(f'Masks of width {table.shape[1]} for a verifier of width '
                     f'{like.shape[0]}; allowed: those trained beside it.')
  lm = meshes.placed(lm, meshes.layout_of(pair.verifier.lm))
  return masks_lib.Masked(lm, config), dict(
      model=model, heads=dict(embedding=table.astype(like.dtype)))


def own(pair: pairs.Pair) -> Any:
  """Parameters of the pair's verifier, without a part that it came with."""
  params = pair.verifier.params
  return params['model'] if set(params) == {'model', 'heads'} else params
