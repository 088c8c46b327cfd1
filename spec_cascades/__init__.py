"""Speculative cascades: draft with q, verify with p, sample from pi = T(q, p).

    from spec_cascades import Chain, Chow, GenSpecSample, Warp, row_keys

    spec = GenSpecSample(verifier, Chain(drafter, 5), max_length=64)
    state = spec(params, draft_params, prompt, row_keys(0, ids),
                 Chow(alpha=0.4), Warp(temperature=1.0))

Models are in `spec_cascades.models` (`t5`, `gemma`), contracts in `api`.
"""
from spec_cascades.check import faults
from spec_cascades.decode import (
    GenSpecSample, Round, State, row_keys, run, stream)
from spec_cascades.drafters.chain import Below, Chain
from spec_cascades.drafters.ngram import NGram
from spec_cascades.drafters.null import Null
from spec_cascades.drafters.tree import Tree
from spec_cascades.stats import Stats
from spec_cascades.targets import (
    OPT, BiLD, Choice, Chow, ChowLog, Diff, DiffLog, Ensemble, Lenience,
    Lossless, Lossy, LossyBeta, LossyBudget, OPTLog, TokenV1, TokenV2, TokenV3,
    TruncatedEta, TruncatedMinP, TruncatedTopP)
from spec_cascades.types import Draft, Feedback, Prediction, Prompt, TokenTree
from spec_cascades.verify import (
    Block, Forced, KSeq, Rejection, Rollback, TopB, Typical)
from spec_cascades.warp import Warp

__all__ = (
    'Below', 'BiLD', 'Block', 'Chain', 'Choice', 'Chow', 'ChowLog', 'Diff',
    'DiffLog', 'Draft', 'Ensemble', 'Feedback', 'Forced', 'GenSpecSample',
    'KSeq', 'Lenience', 'Lossless', 'Lossy', 'LossyBeta', 'LossyBudget',
    'NGram', 'Null', 'OPT', 'OPTLog', 'Prediction', 'Prompt', 'Rejection',
    'Rollback', 'Round', 'State', 'Stats', 'TokenTree', 'TokenV1', 'TokenV2',
    'TokenV3', 'TopB', 'Tree', 'TruncatedEta', 'TruncatedMinP',
    'TruncatedTopP', 'Typical', 'Warp', 'faults', 'row_keys', 'run', 'stream')
