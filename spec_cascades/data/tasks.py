"""seqio Tasks of the Debian corpora, each under its corpus' name.

'debian_ende', 'debian_synopsis', and, to train on beside the first,
'debian_docs'; the Mixture 'debian_ende_docs' is both translation Tasks.
Importing this module loads TensorFlow and registers them with the default
vocabulary. `register` makes others, for example with another vocabulary:

  tasks.register('my_ende', corpus.DEBIAN_ENDE, vocabulary_path='v.model')
"""

from collections.abc import Callable, Mapping, Sequence
import importlib.metadata
import os
import pathlib

from rouge_score import rouge_scorer
import sacrebleu
import seqio
from spec_cascades.data import builders
from spec_cascades.data import corpus
import tensorflow as tf

# That of the pairs that come with the project.
DEFAULT_VOCABULARY_PATH = (
    pathlib.Path(__file__).parents[1]
    / 'assets'
    / corpus.DEBIAN_ENDE.name
    / 'verifier'
    / 'sentencepiece.model'
)
_ROUGE_TYPES = ('rouge1', 'rouge2', 'rougeL', 'rougeLsum')

Reference = Mapping[str, object]


def keep_reference(
    text: str,
    *,
    example: Mapping[str, object] | None = None,
    is_target: bool = False,
    **unused_kwargs,
) -> str | Reference:
  """Postprocessor: a target keeps its near-duplicate mark, a prediction not."""
  if not is_target:
    return text
  return {'text': text, 'near_duplicate': bool(example['near_duplicate'])}


def _distinct(
    targets: Sequence[Reference], predictions: Sequence[str]
) -> tuple[list[str], list[str]]:
  """References and predictions of the examples that are no near-duplicates."""
  kept = [
      (x['text'], y)
      for x, y in zip(targets, predictions)
      if not x['near_duplicate']
  ]
  return [x for x, _ in kept], [y for _, y in kept]


def bleu(
    targets: Sequence[Reference], predictions: Sequence[str]
) -> dict[str, float]:
  """Corpus BLEU (sacreBLEU, 13a) on all and on distinct examples, 0 to 100.

  Distinct examples have no near-duplicate in train.
  """

  def score(references, hypotheses):
    if not references:
      return 0.0
    return sacrebleu.corpus_bleu(hypotheses, [references]).score

  return {
      'bleu': score([x['text'] for x in targets], list(predictions)),
      'bleu_distinct': score(*_distinct(targets, predictions)),
  }


def _bleu_signatures(targets: Sequence[Reference]) -> dict[str, str]:
  """sacreBLEU's, of its defaults and one reference."""
  del targets
  scorer = sacrebleu.BLEU()
  scorer.corpus_score(['a'], [['a']])
  return dict.fromkeys(('bleu', 'bleu_distinct'), str(scorer.get_signature()))


def rouge(
    targets: Sequence[Reference], predictions: Sequence[str]
) -> dict[str, float]:
  """Mean ROUGE-1, -2, -L, -Lsum F1 on all and on distinct texts, 0 to 100."""
  scorer = rouge_scorer.RougeScorer(_ROUGE_TYPES, use_stemmer=True)

  def score(references, hypotheses, suffix):
    totals = dict.fromkeys(_ROUGE_TYPES, 0.0)
    for reference, hypothesis in zip(references, hypotheses):
      for name, x in scorer.score(reference, hypothesis).items():
        totals[name] += 100.0 * x.fmeasure
    count = max(len(references), 1)
    return {f'{name}{suffix}': x / count for name, x in totals.items()}

  everything = score([x['text'] for x in targets], predictions, '')
  return everything | score(*_distinct(targets, predictions), '_distinct')


def _rouge_signatures(targets: Sequence[Reference]) -> dict[str, str]:
  """As those of sweeps."""
  del targets
  version = importlib.metadata.version('rouge_score')
  return {
      f'{name}{suffix}': f'{name} F1|stemmer:yes|rouge_score:{version}'
      for name in _ROUGE_TYPES
      for suffix in ('', '_distinct')
  }


bleu.signatures, rouge.signatures = _bleu_signatures, _rouge_signatures


def _to_text_to_text(
    source: str, target: str, prefix: str
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
  """A preprocessor that renames the text features to inputs and targets."""

  @seqio.map_over_dataset
  def rename(x):
    return {
        'inputs': tf.strings.join([prefix, x[source]]),
        'targets': x[target],
        'id': x['id'],
        'near_duplicate': x['near_duplicate'],
    }

  return rename


_METRIC_FNS = {
    corpus.DEBIAN_ENDE.name: [bleu],
    corpus.DEBIAN_SYNOPSIS.name: [rouge],
    corpus.DEBIAN_DOCS.name: [bleu],
}


def register(
    name: str,
    source: corpus.Corpus,
    *,
    vocabulary_path: os.PathLike | str = DEFAULT_VOCABULARY_PATH,
    prefix: str = '',
    tfds_data_dir: str | None = None,
) -> seqio.Task:
  """Registers a Task on a corpus.

  The vocabulary file is read when the Task is first used. A TFDS data set that
  is not in the data directory is prepared then, and its corpus built.

  Args:
    name: name of the Task.
    source: the corpus.
    vocabulary_path: a SentencePiece model, as `train_vocabulary.py` writes.
    prefix: text put before every input, for mixtures of Tasks.
    tfds_data_dir: TFDS data directory; the default is that of TFDS.
  """
  pieces = seqio.SentencePieceVocabulary(
      str(pathlib.Path(vocabulary_path).expanduser())
  )
  version = builders.BUILDERS[source.name].VERSION
  return seqio.TaskRegistry.add(
      name,
      source=seqio.TfdsDataSource(
          tfds_name=f'{source.name}:{version}',
          tfds_data_dir=tfds_data_dir,
          splits=source.splits,
      ),
      preprocessors=[
          _to_text_to_text(source.source, source.target, prefix),
          seqio.preprocessors.tokenize,
          seqio.preprocessors.append_eos_after_trim,
      ],
      output_features={
          'inputs': seqio.Feature(vocabulary=pieces, add_eos=True),
          'targets': seqio.Feature(vocabulary=pieces, add_eos=True),
      },
      postprocess_fn=keep_reference,
      metric_fns=_METRIC_FNS[source.name],
  )


for _corpus in corpus.CORPORA.values():
  register(_corpus.name, _corpus)
seqio.MixtureRegistry.add(
    'debian_ende_docs',
    [corpus.DEBIAN_ENDE.name, corpus.DEBIAN_DOCS.name],
    default_rate=seqio.mixing_rate_num_examples,
)
