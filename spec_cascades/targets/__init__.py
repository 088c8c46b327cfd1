"""Target distributions pi = T(q, p): what speculative sampling samples from.

q, p are raw predictions (temperature 1), q~, p~ warped ones. Deferral is
decided on the raw ones and mixes the warped ones. `alpha` is a scalar or [B];
`domain` says what it may be, ends included.

Reference: Narasimhan et al. (2025), https://arxiv.org/abs/2405.19261, Table 1;
names of equations and lemmas below are theirs.
"""
from spec_cascades.targets.deferral import (
    BiLD, Chow, ChowLog, Diff, DiffLog, Lenience, OPT, OPTLog)
from spec_cascades.targets.lossy import Lossy, LossyBeta, LossyBudget
from spec_cascades.targets.plain import Choice, Ensemble, Lossless
from spec_cascades.targets.tokenwise import TokenV1, TokenV2, TokenV3
from spec_cascades.targets.truncated import (
    TruncatedEta, TruncatedMinP, TruncatedTopP)

__all__ = [
    'BiLD', 'Choice', 'Chow', 'ChowLog', 'Diff', 'DiffLog', 'Ensemble',
    'Lenience', 'Lossless', 'Lossy', 'LossyBeta', 'LossyBudget', 'OPT',
    'OPTLog', 'TokenV1', 'TokenV2', 'TokenV3', 'TruncatedEta', 'TruncatedMinP',
    'TruncatedTopP']
