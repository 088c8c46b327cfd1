"""Corpora, their TFDS builders, seqio Tasks and vocabularies.

Importing this package imports nothing else: TensorFlow and seqio are loaded by
`spec_cascades.data.builders` and `spec_cascades.data.tasks` only.
"""
