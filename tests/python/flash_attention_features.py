"""Windows, softcap, ALiBi and dropout in FlashAttention's tests: what a case draws, as those tests
draw it, and which pairs flashlab.torch drops, by a text of its own.
"""

from typing import NamedTuple, Optional

import torch

MASK_32, MASK_64 = (1 << 32) - 1, (1 << 64) - 1


class Features(NamedTuple):
    """Arguments of the drop-ins beside q, k, v and causal; kept: [batch, heads, Sq, Sk] bool."""
    window: tuple = (-1, -1)
    softcap: float = 0.0
    slopes: Optional[torch.Tensor] = None
    dropout_p: float = 0.0
    kept: Optional[torch.Tensor] = None

    def arguments(self):
        more = {}
        if self.window != (-1, -1):
            more["window_size"] = self.window
        if self.softcap:
            more["softcap"] = self.softcap
        if self.slopes is not None:
            more["alibi_slopes"] = self.slopes
        if self.dropout_p:
            more["dropout_p"] = self.dropout_p
        return more


def draw(sweep, case, device):
    """What the case asks for, without `kept`."""
    batch, _, seqlen_k, heads, _, _, _ = sweep.shape(case)
    window = tuple(torch.randint(0, seqlen_k, (2,)).tolist()) if case.get("local") else (-1, -1)
    slopes = torch.rand(batch, heads, device=device) * 0.3 if case.get("alibi") else None
    return Features(window, case.get("softcap", 0.0), slopes, case.get("dropout", 0.0))


def query_factor(sweep, case):
    """Of q, so that scores reach the cap: the cap in FlashAttention-2's tests, then a fourth."""
    cap = case.get("softcap", 0.0)
    return 1 if not cap else cap if sweep.file == "fa2" else cap / 4


# ---------------------------------------------------------------------------------------------
# Dropout
# ---------------------------------------------------------------------------------------------

def next_seed(device):
    """(seed, offset) that the next call on the device draws; the generator stays as it is."""
    if device == "cuda":
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        return generator.initial_seed(), generator.get_offset()
    state = torch.random.get_rng_state()
    drawn = torch.randint(-2**63, 2**63 - 1, (2,), dtype=torch.int64).tolist()
    torch.random.set_rng_state(state)
    return drawn[0] & MASK_64, drawn[1] & MASK_64


def head_words(seed, offset, head):
    """Three words of Philox-4x32-10: a head's key, and what its queries and keys are mixed with."""
    c = [head & MASK_32, head >> 32, offset & MASK_32, offset >> 32]
    k = [seed & MASK_32, seed >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & MASK_32,
             first >> 32 ^ c[3] ^ k[1], first & MASK_32]
        k = [(k[0] + 0x9E3779B9) & MASK_32, (k[1] + 0xBB67AE85) & MASK_32]
    return c[:3]


# By the query's 32 and the key's 16, twice: a byte of the pair's own word (0) or of the other (1),
# and how many places on from the pair's own byte. They are added to it.
ADDED = torch.tensor([[[[1, 2], [1, 1]], [[0, 2], [0, 0]], [[1, 3], [0, 2]], [[0, 3], [1, 0]]],
                      [[[0, 2], [1, 0]], [[1, 2], [1, 3]], [[0, 3], [0, 1]], [[1, 3], [0, 3]]]])


def kept_pairs(shape, probability, seed, offset, device):
    """[batch, heads, Sq, Sk] bool: a pair's 7 bits are below 128 (1 - p), or nearly so.

    The pairs (i, i + 8, ...) x (j, j + 8, ...) of 64 queries and 64 keys share the 64 bits of one
    Philox-2x32-7: each has the sum of one or three of its bytes. What is no whole 128th of 1 - p
    goes around with the blocks of 64 keys.
    """
    batch, heads, seqlen_q, seqlen_k = shape
    limit = int(65536 * (1 - float(torch.tensor(probability, dtype=torch.float32))) + 0.5)
    words = torch.tensor([head_words(seed, offset, head) for head in range(batch * heads)],
                         device=device).reshape(-1, 3, 1, 1).unbind(1)
    i, j = (torch.arange(length, device=device) for length in (seqlen_q, seqlen_k))
    out = torch.empty(batch * heads, seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    for head in range(batch * heads):
        key, query_word, key_word = (word[head] for word in words)
        c0 = query_word ^ ((i >> 6 << 3) | (i & 7))[:, None]
        c1 = key_word ^ ((j >> 6 << 3) | (j & 7))[None, :]
        c0, c1 = (c.expand(seqlen_q, seqlen_k) for c in (c0, c1))
        turn = (c0 * 0xD256D193 + key_word + (j >> 6)[None, :] * 0x9E3779B9) >> 23 & 511
        for round_number in range(7):
            product = c0 * 0xD256D193  # modulo 2^64: the shift below leaves what is wanted
            round_key = (key + round_number * 0x9E3779B9) & MASK_32
            c0, c1 = (product >> 32 & MASK_32) ^ c1 ^ round_key, product & MASK_32
        upper = (i >> 4 & 1)[:, None] == 1
        own, other = torch.where(upper, c1, c0), torch.where(upper, c0, c1)
        place = (i >> 3 & 1)[:, None] * 2 + (j >> 3 & 1)[None, :]
        added = ADDED.to(device)[(i >> 5 & 1)[:, None], (j >> 4 & 3)[None, :]]
        number = own >> place * 8
        for source, places in added.unbind(2):
            number ^= torch.where(source == 1, other, own) >> (place + places) % 4 * 8
        number &= 127
        out[head] = number < (limit + turn) // 512
    return out.reshape(shape)
