"""Attention in float64 by its definition, in NumPy, and arrays to try it on."""

import numpy as np

BOUNDS = {"float64": 1e-13, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


def arrays(seed, batch, seqlen_q, seqlen_k, heads_q, heads_k, head_dim, head_dim_v=None,
           dtype="float32"):
    """q, k, v of standard normals, and a gradient of o."""
    rng = np.random.default_rng(seed)
    head_dim_v = head_dim_v or head_dim
    shapes = ((batch, seqlen_q, heads_q, head_dim), (batch, seqlen_k, heads_k, head_dim),
              (batch, seqlen_k, heads_k, head_dim_v), (batch, seqlen_q, heads_q, head_dim_v))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def _visible(seqlen_q, seqlen_k, causal):
    if causal in (None, False):
        return np.ones((seqlen_q, seqlen_k), bool)
    return np.tril(np.ones((seqlen_q, seqlen_k), bool),
                   seqlen_k - seqlen_q if causal == "bottom-right" else 0)


def _probabilities(q, k, causal, scale, mask):
    """[batch, heads_q, seqlen_q, seqlen_k] probabilities, and the log-sum-exp."""
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    visible = _visible(q.shape[1], k.shape[1], causal)
    if mask is not None:
        if mask.dtype == bool:
            visible = visible & mask
        else:
            scores = scores + mask.astype(np.float64)
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, np.log(total) + np.where(np.isfinite(top), top, 0), -np.inf)
    return weights / np.where(total > 0, total, 1), lse[..., 0]


def _wide(q, k, v, scale):
    scale = _scale(scale, q)
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    return q, k.repeat(group, axis=2), v.repeat(group, axis=2), group, scale


def _scale(scale, q):
    """Kernels multiply by the scale in the type of their sums."""
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    return float(scale if q.dtype == np.float64 else np.float32(scale))


def forward(q, k, v, causal=None, scale=None, mask=None):
    """o [batch, seqlen_q, heads_q, head_dim_v] and lse [batch, heads_q, seqlen_q]."""
    q, k, v, _, scale = _wide(q, k, v, scale)
    p, lse = _probabilities(q, k, causal, scale, mask)
    return np.einsum("bhqk,bkhd->bqhd", p, v), lse


def backward(d_o, q, k, v, d_lse=None, causal=None, scale=None, mask=None):
    """dq, dk, dv by differentiating the softmax as it stands."""
    q, k, v, group, scale = _wide(q, k, v, scale)
    d_o = np.asarray(d_o, np.float64)
    p, _ = _probabilities(q, k, causal, scale, mask)
    d_p = np.einsum("bqhd,bkhd->bhqk", d_o, v)
    d_s = p * (d_p - (p * d_p).sum(axis=-1, keepdims=True))
    if d_lse is not None:
        d_s += p * np.asarray(d_lse, np.float64)[..., None]

    def folded(gradient):
        batch, seqlen, heads, dim = gradient.shape
        return gradient.reshape(batch, seqlen, heads // group, group, dim).sum(axis=3)
    return (np.einsum("bhqk,bkhd->bqhd", d_s, k) * scale,
            folded(np.einsum("bhqk,bqhd->bkhd", d_s, q) * scale),
            folded(np.einsum("bhqk,bqhd->bkhd", p, d_o)))


def close(test, got, expected, dtype, what=""):
    """Asserts that got is expected within the bound of its dtype, infinities included."""
    got = np.asarray(got, np.float64)
    test.assertEqual(got.shape, expected.shape, what)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite], what)
    if finite.any():
        scale = max(1.0, np.abs(expected[finite]).max())
        error = np.abs(got[finite] - expected[finite]).max() / scale
        test.assertLess(error, BOUNDS[dtype], what)
