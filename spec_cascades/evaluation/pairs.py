"""A verifier and a drafter that belong together, ready to decode."""
from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import pathlib
import threading
from typing import Any, Callable, Iterator, Mapping

import jax
import numpy as np

from spec_cascades import checkpoints
from spec_cascades import sharding
from spec_cascades.checkpoints import buffers
from spec_cascades.checkpoints import loading
from spec_cascades.checkpoints import native
from spec_cascades.evaluation import meshes
from spec_cascades.evaluation import text
from spec_cascades.models import products
from spec_cascades.models import reduced
from spec_cascades.models import t5

ASSETS = pathlib.Path(__file__).resolve().parents[1] / 'assets'
SHIPPED = ASSETS / 'debian_ende'
# float16 ends at 65,504, which activations of T5 and Gemma exceed.
DTYPES = ('float32', 'bfloat16')
_PACKING = threading.RLock()   # `cached_property` has none from Python 3.12 on


@dataclasses.dataclass(frozen=True)
class Model:
  """A language model, its parameters and where they come from.

  Attributes:
    name: To show.
    lm: The model.
    checkpoint: Its parameters in checkpoint layout; None once `params` has
      packed them, so that memory does not hold both.
    sha256: Of what it was read from.
    max_input_length: In tokens.
  """
  name: str
  lm: Any
  checkpoint: Any = dataclasses.field(repr=False)
  sha256: str
  max_input_length: int

  @property
  def params(self) -> Any:
    """The parameters in decode layout; takes those of `checkpoint`.

    Threads that ask at once wait for the first, which packs them.
    """
    with _PACKING:
      return self._packed

  @functools.cached_property
  def _packed(self):
    spent = _Trimmed.of(self.unpacked())
    object.__setattr__(self, 'checkpoint', None)
    return products.compacted(self.lm.pack(spent), freed=buffers.trim)

  def unpacked(self) -> Any:
    """The parameters in checkpoint layout; ValueError if they were packed."""
    if self.checkpoint is None:
      raise ValueError(f'The parameters of {self.name} were packed, and the '
                       'checkpoint let go; load it again.')
    return self.checkpoint


def outlined(model: Model) -> Model:
  """The model with the shapes of its parameters, which are not packed yet.

  What is made with it is only good to see whether it can be made. A `Reduced`
  one, whose ids have to be known to pack it, stays as it is.
  """
  if model.checkpoint is None or isinstance(model.lm, reduced.Reduced):
    return model
  found = dataclasses.replace(model, checkpoint=None)
  vars(found)['_packed'] = jax.eval_shape(model.lm.pack, model.checkpoint)
  return found


class _Trimmed(products.Spent):
  """What was let go is given back to the system, too."""

  @property
  def nbytes(self) -> int:
    """Of what is left."""
    return sum(x.nbytes for x in self.values())

  def items(self) -> Iterator[tuple[str, Any]]:
    """Takes out entry after entry, in order."""
    for name, child in super().items():
      nbytes = child.nbytes
      yield name, child
      del child
      buffers.trim(nbytes)


@dataclasses.dataclass(frozen=True)
class Part:
  """What a drafter that is no model was given: its parameters."""
  params: Any
  sha256: str


@dataclasses.dataclass(frozen=True)
class Pair:
  """Models that read and write the same vocabulary.

  Attributes:
    verifier: The large one.
    drafter: The small one, if any.
    vocabulary: Of both.
    vocabulary_sha256: Of the vocabulary.
    parts: By the name of a drafter, what it needs besides.
  """
  verifier: Model
  drafter: Model | None
  vocabulary: Any
  vocabulary_sha256: str
  parts: Mapping[str, Part] = dataclasses.field(default_factory=dict)

  @property
  def max_input_length(self) -> int:
    """The longest input, in tokens, that every model takes."""
    models = filter(None, (self.verifier, self.drafter))
    return min(model.max_input_length for model in models)

  @property
  def prompt(self) -> Callable[..., Any]:
    """From tokens to a prompt: an encoder's input, or what to continue."""
    return prompt_of(self.verifier.lm)


def prompt_of(lm: Any) -> Callable[..., Any]:
  """From tokens to a model's prompt: an encoder's input, or its prefix."""
  return text.encoder_prompt if encodes(lm) else text.prefix_prompt


def encodes(lm: Any) -> bool:
  """Whether a model's input is an encoder's."""
  return type(meshes.bare(lm)) is t5.T5


def load(verifier: str = str(SHIPPED / 'verifier'),
         drafter: str | None = str(SHIPPED / 'drafter'), *,
         dtype: str = 'float32', mesh: meshes.Mesh = meshes.Mesh(),
         progress: Callable[..., Any] | None = None) -> Pair:
  """Reads one or two checkpoints of any format; by default the shipped pair.

  Args:
    verifier: Path of the large model.
    drafter: Path of the small one, if any.
    dtype: Of weights, activations and caches: one of `DTYPES`.
    mesh: Where they lie; devices get their shards as they are read.
    progress: See `checkpoints.loading.load`.

  Raises:
    ValueError: A path does not hold a model with a tokenizer, the vocabularies
      or kinds differ, the dtype is unknown, or there are too few devices.
  """
  if dtype not in DTYPES:
    raise ValueError(f'Got dtype {dtype!r}; allowed: {", ".join(DTYPES)}.')
  paths = [path for path in (verifier, drafter) if path is not None]
  for path in paths:
    checkpoints.check_there(path)
  own = all(map(is_own, paths))
  digests = [vocabulary_digest(path) for path in paths] if own else []
  sources = [native.source(path) if own else _opened(path) for path in paths]
  digests = digests or [pieces_digest(x.tokenizer(), x.lm.vocab_size)
                        for x in sources]
  _check_same(digests, paths)
  sizes = [source.lm.vocab_size for source in sources]
  if len(set(sizes)) > 1:
    raise ValueError(f'{verifier} has {sizes[0]} embeddings and {drafter} '
                     f'{sizes[1]}; give both the same vocab_size.')
  if len({encodes(source.lm) for source in sources}) > 1:
    kinds = ['an encoder-decoder' if encodes(source.lm) else 'a decoder alone'
             for source in sources]
    raise ValueError(f'{verifier} is {kinds[0]}, and {drafter} '
                     f'{kinds[1]}, which read prompts in different ways; give '
                     'two of a kind.')
  for source in sources:              # before minutes of reading, of either
    loading.fit(source)
  read = functools.partial(_own if own else _foreign, dtype=dtype,
                           progress=progress)
  layouts = mesh.layouts() or (None, None)
  models, vocabularies = zip(*(
      read(path, source, layout=layout)
      for path, source, layout in zip(paths, sources, layouts)))
  small = sharing(*models) if drafter is not None else None
  large = _shared(models[0]) if small and is_shared(small) else models[0]
  return Pair(large, small, vocabularies[0], digests[0])


def is_own(path: str) -> bool:
  """Whether it is, or has to be, a T5 of our own with its vocabulary.

  One that was converted with a tokenizer of another kind is not.
  """
  place = pathlib.Path(path).expanduser()
  if (place / native.WEIGHTS).exists() and not (place / native.CONFIG).exists():
    return True
  if not native.recognises(place):
    return False
  config = native.read_config(path)
  return config['family'] == 't5' and config['vocabulary'] == native.VOCABULARY


def vocabulary_digest(directory: str) -> str:
  """SHA-256 of a model directory's SentencePiece file."""
  path = pathlib.Path(directory).expanduser() / native.VOCABULARY
  native.read_config(directory)
  if not path.is_file():
    raise ValueError(f'No {native.VOCABULARY} in {directory}; a model '
                     'directory holds the vocabulary that it was trained with.')
  return hashlib.sha256(path.read_bytes()).hexdigest()


def computing(lm: Any, dtype: str) -> Any:
  """The model with activations and caches in `dtype`."""
  if isinstance(lm, reduced.Around):
    return dataclasses.replace(lm, lm=computing(lm.lm, dtype))
  return dataclasses.replace(
      lm, config=dataclasses.replace(lm.config, dtype=dtype))


def _opened(path: str) -> loading.Source:
  """A checkpoint of any format, no weights read, with its tokenizer made."""
  source = checkpoints.source_of(path)
  tokenizer = source.tokenizer and source.tokenizer()
  if tokenizer is None:
    how = ('convert it again, with --vocabulary'
           if native.recognises(pathlib.Path(path).expanduser()) else
           'put its tokenizer.json or SentencePiece model beside the weights')
    raise ValueError(f'{path} holds no tokenizer; {how}.')
  return dataclasses.replace(source, tokenizer=lambda: tokenizer)


def _own(path: str, source: loading.Source, *, dtype: str, progress,
         layout) -> tuple[Model, Any]:
  lm, params, vocabulary = _read(source, dtype, progress, layout)
  config = native.read_config(path)
  return Model(shown(path), lm, params, digest(path),
               config['max_input_length']), vocabulary


def _foreign(path: str, source: loading.Source, *, dtype: str, progress,
             layout) -> tuple[Model, Any]:
  lm, params, tokenizer = _read(source, dtype, progress, layout)
  place = pathlib.Path(os.path.abspath(pathlib.Path(path).expanduser()))
  name = shown(path) if native.recognises(place) else place.name
  return Model(name, lm, params, digest(path),
               loading.max_input_length(source, tokenizer)), tokenizer


def _read(source, dtype, progress, layout):
  """A checkpoint, its model computing in `dtype`, on a mesh if there is one."""
  where = layout and functools.partial(
      layout.parameter, config=source.lm.config)
  lm, params, words = loading.load(source, dtype=dtype, progress=progress,
                                   sharding=where)
  return meshes.placed(computing(lm, dtype), layout), params, words


def moved(model: Model, layout: sharding.Layout) -> Model:
  """A model that was read for one device, on a mesh; it is not packed yet."""
  lm, checkpoint = meshes.placed(model.lm, layout), model.unpacked()
  where = layout.parameters(checkpoint, reduced.whole(lm).config)
  return dataclasses.replace(model, lm=lm,
                             checkpoint=sharding.put(checkpoint, where))


def sharing(verifier: Model, small: Model) -> Model:
  """The small model; shared if its encoder is, to the bit, the verifier's."""
  own, theirs = (meshes.bare(model.lm) for model in (small, verifier))
  if {type(own), type(theirs)} != {t5.T5} or own.config.encoder is None or (
      verifier.checkpoint is None):                    # it was packed before
    return small
  mine, lent = map(_unwrapped, (small, verifier))
  same = own.config.encoding == theirs.config.encoding and all(
      equal(mine[name], lent[name_there])
      for name, name_there in t5.BORROWED.items())
  return _shared(small) if same else small


def _unwrapped(model):
  """Parameters of what reads tokens, see `reduced.whole`."""
  params = model.unpacked()
  return params['model'] if isinstance(model.lm, reduced.Around) else params


def equal(a: Any, b: Any) -> bool:
  """Whether two trees of arrays are the same to the bit."""
  (a, first), (b, second) = map(jax.tree.flatten, (a, b))
  return first == second and all(
      x.shape == y.shape and _same(x, y) for x, y in zip(a, b))


def _same(x, y):
  """In a host's memory by NumPy, so that nothing is compiled for it."""
  here = lambda a: isinstance(a, np.ndarray) or (
      [d.platform for d in a.devices()] == ['cpu'])
  if here(x) and here(y):
    x, y = np.asarray(x), np.asarray(y)
  return bool((x == y).all())


def is_shared(model: Model) -> bool:
  """Whether one encoder serves it and another, see `T5.shared`."""
  return getattr(meshes.bare(model.lm), 'shared', False)


def _shared(model):
  lm, around = model.lm, isinstance(model.lm, reduced.Around)
  made = meshes.placed(dataclasses.replace(meshes.bare(lm), shared=True),
                       meshes.layout_of(lm))
  return dataclasses.replace(
      model, lm=dataclasses.replace(lm, lm=made) if around else made)


def shown(path: str) -> str:
  """What to call a path: debian_ende/verifier, say."""
  return '/'.join(pathlib.Path(path).expanduser().resolve().parts[-2:])


def digest(path: str) -> str:
  """SHA-256 of what a checkpoint of any format holds: `Model.sha256`."""
  place = pathlib.Path(path).expanduser()
  return native.digest(place) if native.recognises(place) else _digest(place)


def _digest(place: pathlib.Path) -> str:
  """SHA-256 over the names and contents of a checkpoint's files."""
  state = hashlib.sha256()
  files = [place] if place.is_file() else sorted(
      x for x in place.rglob('*') if x.is_file())
  for file in files:
    name = file.name if file == place else str(file.relative_to(place))
    state.update(f'{name}\n{file.stat().st_size}\n'.encode())
    with file.open('rb') as opened:
      hashlib.file_digest(opened, lambda: state)
  return state.hexdigest()


def pieces_digest(tokenizer: Any, rows: int) -> str:
  """SHA-256 over what the tokens spell that have one of `rows` embeddings."""
  state = hashlib.sha256()
  for token in range(min(tokenizer.size, rows)):
    state.update(tokenizer.piece(token).encode('utf-8', 'surrogatepass'))
    state.update(b'\0')
  return state.hexdigest()


def _check_same(digests, paths) -> None:
  if len(set(digests)) > 1:
    raise ValueError(f'The vocabularies of {paths[0]} and {paths[1]} differ; a '
                     'drafter must be trained with the vocabulary of its '
                     'verifier.')
