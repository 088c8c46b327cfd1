"""A small seqio Task for runs of T5X; its vocabulary is named by a variable."""
import os

import numpy as np
import seqio
import tensorflow as tf

TEXTS = ('the file is open', 'open the door', 'save the file now',
         'a server for mail', 'a game of cards', 'a client for mail',
         'the door is open', 'draw a picture', 'a small library',
         'the library is small', 'cards and pictures')
VOCABULARY = seqio.SentencePieceVocabulary(os.environ['T5X_TASK_VOCABULARY'])
SPLITS = ('train', 'validation', 'test')


def dataset(split, shuffle_files, seed=None):
  del split, shuffle_files, seed
  return tf.data.Dataset.from_tensor_slices(
      dict(inputs=list(TEXTS), targets=[text[::-1] for text in TEXTS]))


def tokens_per_call(targets, predictions, aux_values):
  del targets, predictions
  emitted, calls = (np.sum(aux_values[name])
                    for name in ('emitted', 'verifier_calls'))
  return {'tokens_per_call': float(emitted / calls)}


seqio.TaskRegistry.add(
    't5x_task',
    source=seqio.FunctionDataSource(
        dataset, splits=SPLITS,
        num_input_examples=dict.fromkeys(SPLITS, len(TEXTS))),
    preprocessors=[seqio.preprocessors.tokenize,
                   seqio.preprocessors.append_eos_after_trim],
    output_features={name: seqio.Feature(VOCABULARY, add_eos=True)
                     for name in ('inputs', 'targets')},
    metric_fns=[tokens_per_call])
