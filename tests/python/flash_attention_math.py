"""FlashAttention's test rule, and how each kind of case is run.

For each case three results come from the same rounded inputs: `ref` is the formula in fp32, rounded
once; `pt` is the formula in the inputs' type with the scale on K; `lib` is flashlab.torch. The rule
is max|lib - ref| <= factor max|pt - ref| + atol, for the output and for every gradient.
"""

import math
from typing import NamedTuple

import torch

import flash_attention_cases as cases
import flash_attention_features as features_of_tests
import flashlab.torch as lib
import flashlab.torch.cute
import flashlab.torch.flash_attn_interface
from flash_attention_features import Features

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32,
          "e4m3": torch.float8_e4m3fn}


class Failed(Exception):
    """A result that the rule does not allow."""


# ---------------------------------------------------------------------------------------------
# The formula
# ---------------------------------------------------------------------------------------------

def hidden_by_causal(seqlen_q, seqlen_k, device):
    """True where a query does not see a key: the last query sees the last key."""
    row = torch.arange(seqlen_q, device=device)[:, None]
    return torch.arange(seqlen_k, device=device) > row + (seqlen_k - seqlen_q)


def hidden_by(causal, window, seqlen_q, seqlen_k, device, chunk=0):
    """The same with a window (left, right) around the aligned key, and with chunks of keys; None:
    all is seen."""
    left, right = window
    if not causal and (left, right) == (None, None) and not chunk:
        return None
    hidden = (hidden_by_causal(seqlen_q, seqlen_k, device) if causal else
              torch.zeros(seqlen_q, seqlen_k, dtype=torch.bool, device=device))
    aligned = torch.arange(seqlen_q, device=device)[:, None] + (seqlen_k - seqlen_q)
    key = torch.arange(seqlen_k, device=device)
    if left is not None:
        hidden = hidden | (key < aligned - left)
    if right is not None:
        hidden = hidden | (key > aligned + right)
    if chunk:
        hidden = hidden | (torch.div(key, chunk, rounding_mode="floor") !=
                           torch.div(aligned, chunk, rounding_mode="floor"))
    return hidden


def scores(q, k, causal, scale_on_k=False, features=Features()):
    """[batch, heads, seqlen_q, seqlen_k], and what causal and window hide."""
    scale = 1 / math.sqrt(q.shape[-1])
    q, k = (q, k * scale) if scale_on_k else (q * scale, k)
    s = torch.einsum("bqhd,bkhd->bhqk", q, k)
    seqlen_q, seqlen_k = s.shape[2:]
    if features.softcap:
        s = torch.tanh(s / features.softcap) * features.softcap
    hidden = hidden_by(causal, features.window, seqlen_q, seqlen_k, q.device, features.chunk)
    if hidden is not None:
        s = s.masked_fill(hidden, -math.inf)
    if features.slopes is not None:
        aligned = torch.arange(seqlen_q, device=q.device)[:, None] + (seqlen_k - seqlen_q)
        distance = (torch.arange(seqlen_k, device=q.device) - aligned).abs()
        s = s - features.slopes[:, :, None, None] * distance
    return s, hidden


def formula(q, k, v, causal, upcast, features=Features(), with_lse=False):
    """Attention written down: in fp32 and rounded once, or (upcast False) in the inputs' type. With
    `with_lse` (out not rounded, LSE [batch, heads, seqlen_q], 0 for rows that see nothing)."""
    dtype, group = q.dtype, q.shape[2] // k.shape[2]
    if upcast:
        q, k, v = q.float(), k.float(), v.float()
    k, v = (x.repeat_interleave(group, dim=2) if group > 1 else x for x in (k, v))
    s, hidden = scores(q, k, causal, scale_on_k=not upcast, features=features)
    all_scores = s
    if features.sinks is not None:
        sinks = features.sinks.to(s.dtype)[None, :, None, None].expand(*s.shape[:3], 1)
        all_scores = torch.cat([s, sinks], -1)
    p = torch.softmax(all_scores, dim=-1)[..., :s.shape[-1]].to(v.dtype)
    if hidden is not None:  # some queries may see no key at all
        p = p.masked_fill(hidden.all(dim=-1, keepdim=True), 0)
    if features.kept is not None:
        p, v = p.masked_fill(~features.kept, 0), v / (1 - features.dropout_p)
    out = torch.einsum("bhqk,bkhd->bqhd", p, v)
    if not with_lse:
        return out.to(dtype)
    lse = torch.logsumexp(all_scores, dim=-1)
    return out, lse if hidden is None else torch.where(hidden.all(dim=-1), 0, lse)


def by_rounded_out(given, leaves, got, g, draws=4):
    """What roundings of dP - rowsum(dO O) do to each leaf's gradient, at most; `given` is (out,
    lse) of the formula in fp32, out [..., seqlen_q, heads, dim].

    Backward has dS = P (dP - rowsum(dO O)) with the O that forward has stored, in the inputs' type:
    the originals' algorithm, too. So the error of O goes into dS as a gradient of LSE, -rowsum(dO
    (O - exact O)), would. pt has no such term, as autograd sums P dP before anything is rounded:
    where P is nearly 1 for one key it errs far less, and less than twice its error is allowed.

    Where P is 1 both are 0 in exact numbers and in pt, and here two sums over the head dim in fp32,
    in two orders: they differ by some 2^-24 of the sum of magnitudes, with either sign. Five times
    the root mean square of that is added."""
    out, lse = given
    products = (g.float() * out).detach()

    def effect(of_rows):
        found = torch.autograd.grad(lse, leaves, -of_rows.transpose(-1, -2), allow_unused=True,
                                    retain_graph=True)
        return [torch.zeros(()) if x is None else x.float() for x in found]

    squares = [0] * len(leaves)
    for _ in range(draws):
        signs = torch.randint(0, 2, products.shape[:-1], device=g.device) * 2 - 1
        noise = effect(signs * products.abs().sum(-1) * 2 ** -24)
        squares = [s + x.square() / draws for s, x in zip(squares, noise)]
    by_out = effect(((got.float() - out) * g.float()).sum(-1).detach())
    return [x.abs() + 5 * s.sqrt() for x, s in zip(by_out, squares)]


def rounding(x):
    """The largest change of x by adding and subtracting 0.3 in its type: of about one rounding."""
    moved = ((x.float() + 0.3).to(x.dtype).float() - 0.3).to(x.dtype)
    return (moved.float() - x.float()).abs().max()


class SinkGradient(NamedTuple):
    """The gradient of sinks, one sum a head over all rows and columns of -P_sink g O, for which the
    originals have no rule: of so few numbers pt often meets ref in all. So it is held to fp32, not
    rounded, head by head.

    The library's terms are g O with O rounded to its type, as the originals' are, and made of P
    rounded to it; both move a term by at most half a unit, independently and evenly, 0.42 of that
    in the root mean square over all numbers: together 0.6 half units of each term. Allowed are five
    times that of the root of all squared terms, and half a unit of the result itself."""
    got: torch.Tensor
    exact: torch.Tensor
    terms: torch.Tensor  # the root of the sum of all squared terms

    @staticmethod
    def of(got, out, sinks, g):
        """`out` is the formula in fp32, of `sinks` in fp32. A number of `out` depends on its own
        head's sink alone, so the derivative of the gradient by `of_out` has every number's, and the
        gradient for g^2 times that is the sum of all squared terms."""
        of_out = torch.zeros_like(out, requires_grad=True)
        found, = torch.autograd.grad(out, [sinks], of_out, create_graph=True, allow_unused=True)
        if found is None:
            return SinkGradient(got, torch.zeros_like(sinks), torch.zeros_like(sinks))
        each, = torch.autograd.grad(found.sum(), of_out, retain_graph=True)
        exact, = torch.autograd.grad(out, [sinks], g, retain_graph=True)
        squares, = torch.autograd.grad(out, [sinks], g.square() * each, retain_graph=True)
        return SinkGradient(got, exact, squares.clamp_min(0).sqrt())

    def share(self):
        """Error over what is allowed, of the worst head."""
        half = torch.finfo(self.got.dtype).eps / 2
        allowed = half * (self.exact.abs() + 5 * 0.6 * self.terms)
        error = (self.got.float() - self.exact).abs()
        share = torch.where(error == 0, 0, error / allowed)
        return share.nan_to_num(math.inf, posinf=math.inf).max().item()


def judge_all(triples, rule, sinks=None, of_out=None):
    """judge(), and the gradient of sinks where there is one."""
    shares, note = judge(triples, rule, of_out)
    if sinks is not None:
        shares["dsink"] = sinks.share()
        if not shares["dsink"] <= 1:
            raise Failed(f"dsink: {shares['dsink']:.3g} of what the roundings of out allow")
    return shares, note


def judge(triples, rule, of_out=None):
    """Holds (name, lib, pt, ref) to the rule: ({name: error / allowed}, note).

    of_out() says by name what the rounding of out adds to a gradient (by_rounded_out): it is asked
    where the rule fails, and its largest element is allowed beside; the note says so.

    FlashAttention-2's tests have no atol for a last bit that is rounded the other way where pt
    agrees with ref in every bit by luck. Such a case passes by the rule of versions 3 and 4, and
    the note says so.
    """
    names, figures, shares, notes = [], [], {}, []
    for name, got, pt, ref in triples:
        if got.shape != ref.shape or got.dtype != ref.dtype:
            raise Failed(f"{name} is {got.dtype} {tuple(got.shape)}, "
                         f"expected {ref.dtype} {tuple(ref.shape)}")
        if ref.numel() == 0:
            continue
        exact = ref.float()
        names.append(name)
        figures += [(got.float() - exact).abs().max(), (pt.float() - exact).abs().max(),
                    rounding(ref)]
    values = torch.stack(figures).tolist() if figures else []
    for at, name in enumerate(names):
        error, yardstick, step = values[3 * at:3 * at + 3]
        factor, atol = ((rule.out, rule.out_atol) if name == "out"
                        else (rule.grad, rule.grad_atol))
        allowed = factor * yardstick + max(2 * step, atol or 0)
        if not error <= allowed and math.isfinite(error) and of_out and name != "out":
            more = of_out()[name].abs().max().item()
            notes.append(f"{name} {error:.3g} > {allowed:.3g} by the rounding of out, {more:.3g}")
            allowed += more
        if not error <= allowed:
            raise Failed(f"{name}: max|lib-ref| {error:.3g} > {allowed:.3g} allowed "
                         f"({factor:g} x {yardstick:.3g} + atol)")
        if atol is not None and error > factor * yardstick + atol:
            notes.append(f"{name} {error:.3g} > {factor:g} x {yardstick:.3g} + {atol:g}")
        shares[name] = error / allowed if allowed > 0 else 0.0
    return shares, ", ".join(notes)


# ---------------------------------------------------------------------------------------------
# Inputs and calls
# ---------------------------------------------------------------------------------------------

def leaves_of(sweep, case, device, seed=0):
    """The tensors that a call of the drop-ins takes, drawn in the original's order."""
    torch.random.manual_seed(seed)
    batch, seqlen_q, seqlen_k, heads, kv_heads, dim, dim_v = sweep.shape(case)
    times = case.get("times", (1, 1, 1))
    times = (times[0] * features_of_tests.query_factor(sweep, case), *times[1:])

    def draw(*shape, factor=1):
        made = torch.randn(*shape, device=device, dtype=DTYPES[case["dtype"]])
        return (made * factor if factor != 1 else made).requires_grad_()

    if case.get("pack") == "qkv":
        return [draw(batch, seqlen_q, 3, heads, dim)]
    q = draw(batch, seqlen_q, heads, dim, factor=times[0])
    if case.get("pack") == "kv":
        return [q, draw(batch, seqlen_k, 2, kv_heads, dim)]
    return [q, draw(batch, seqlen_k, kv_heads, dim, factor=times[1]),
            draw(batch, seqlen_k, kv_heads, dim_v, factor=times[2])]


def unpacked(leaves):
    """q, k, v of the tensors that a drop-in takes."""
    if len(leaves) == 3:
        return leaves
    return leaves[0].unbind(2) if len(leaves) == 1 else [leaves[0], *leaves[1].unbind(2)]


def interface(more):
    """The module whose function has these arguments, and its word for a side without a bound."""
    if "attention_chunk" in more:
        return lib.flash_attn_interface, -1
    signed = any(side is None or side < 0 for side in more.get("window_size", ()))
    return (lib.cute, None) if signed or "learnable_sink" in more else (lib, -1)


def call(leaves, case, **more):
    names = {1: "flash_attn_qkvpacked_func", 2: "flash_attn_kvpacked_func", 3: "flash_attn_func"}
    module, unbounded = interface(more)
    if "window_size" in more:
        more["window_size"] = tuple(unbounded if side is None else side
                                    for side in more["window_size"])
    out = getattr(module, names[len(leaves)])(
        *leaves, causal=bool(case["causal"]), deterministic=bool(case.get("deterministic", 0)),
        **more)
    return out[0] if module is lib.cute else out


def call_with_lse(leaves, case, **more):
    """(out, lse), both differentiable; flash-attn's own functions give no gradient to lse."""
    return lib.attention(*leaves, causal="bottom-right" if case["causal"] else None,
                         return_lse=True, **more)


def named_gradients(leaves, gradients):
    if len(leaves) == 1:
        return [("dqkv", gradients[0])]
    if len(leaves) == 2:
        return [("dq", gradients[0]), *zip(("dk", "dv"), gradients[1].unbind(2))]
    return list(zip(("dq", "dk", "dv"), gradients))


# ---------------------------------------------------------------------------------------------
# The kinds of cases
# ---------------------------------------------------------------------------------------------

def run_rule(sweep, case, device, _):
    leaves = leaves_of(sweep, case, device)
    features = features_of_tests.draw(sweep, case, device)
    seed = features_of_tests.next_seed(device)
    outs = [call(leaves, case, **features.arguments())]
    if features.dropout_p:
        features = features._replace(kept=kept_by(sweep, case, features.dropout_p, seed, device))
    exact = features_of_tests.exact_sinks(features)
    outs += [formula(*unpacked(leaves), case["causal"], False, features),
             formula(*unpacked(leaves), case["causal"], True, exact)]
    if case.get("strided_gradient"):
        # Gradients that are neither contiguous nor in the output's order of dimensions.
        outs = [out.transpose(0, 1) for out in outs]
        seqlen, batch, heads, dim = outs[0].shape
        g = torch.randn(seqlen, 2 * batch, heads, dim, device=device, dtype=outs[0].dtype)[:, ::2]
    else:
        g = torch.randn_like(outs[0])
    results, sinks = [], None
    for which, out in enumerate(outs):
        own = [features.sinks] if features.sinks is not None and which == 0 else []
        gradients = torch.autograd.grad(out, [*leaves, *own], g,
                                        retain_graph=features.sinks is not None)
        results.append(named_gradients(leaves, gradients[:len(leaves)]))
        if own:
            sinks = SinkGradient.of(gradients[-1], outs[-1], exact.sinks, g)
    triples = [("out", *(out.detach() for out in outs))]
    for (name, got), (_, pt), (_, ref) in zip(*results):
        triples.append((name, got, pt, ref))

    def of_out():
        given = formula(*unpacked(leaves), case["causal"], True, exact, with_lse=True)
        rows = [x.transpose(0, 1) if case.get("strided_gradient") else x for x in (outs[0], g)]
        return dict(named_gradients(leaves, by_rounded_out(given, leaves, *rows)))

    return judge_all(triples, sweep.rule, sinks, of_out)


def kept_by(sweep, case, probability, seed, device):
    """The pairs that dropout keeps; their share is what the original asks of it."""
    batch, seqlen_q, seqlen_k, heads, *_ = sweep.shape(case)
    kept = features_of_tests.kept_pairs((batch, heads, seqlen_q, seqlen_k), probability, *seed,
                                        device)
    dropped = 1 - kept.double().mean().item()
    if abs(dropped - probability) > (0.01 if kept.numel() > 10000 else 0.2):
        raise Failed(f"dropout: a share of {dropped:.3g} is dropped, expected {probability:g}")
    return kept


def run_repeat(sweep, case, device, repeats):
    """The same call again and again: equal in every bit, but for dq unless deterministic."""
    leaves = leaves_of(sweep, case, device)
    more = features_of_tests.draw(sweep, case, device).arguments()
    deterministic = bool(case.get("deterministic", 0))

    def once():
        torch.random.manual_seed(42)  # of dropout
        out, lse, _ = call(leaves, case, return_attn_probs=True, **more)
        return out, lse

    out, first_lse = once()
    g = torch.randn_like(out)
    first_out, wrong = out.detach(), []
    first = torch.autograd.grad(out, leaves, g, retain_graph=True)
    if not all(bool(x.isfinite().all()) for x in (first_out, *first)):
        raise Failed("a result is not finite")
    atol = 2 * rounding(first[0]).item()
    for _ in range(min(repeats, sweep.repeats)):
        if not deterministic:
            out, lse = once()
            wrong.append(("out", (out != first_out).sum()))
            wrong.append(("lse", (lse != first_lse).sum()))
        again = torch.autograd.grad(out, leaves, g, retain_graph=deterministic)
        for name, x, y in zip(("dq", "dk", "dv"), again, first):
            differs = x != y
            if name == "dq" and not deterministic:
                differs = ~torch.isclose(x, y, atol=atol)
            wrong.append((name, differs.sum()))
    counts = torch.stack([count for _, count in wrong]).tolist() if wrong else []
    for (name, _), count in zip(wrong, counts):
        if count:
            raise Failed(f"{name} of a repeated call differs in {count} elements")
    return {}, ""


def run_launch(sweep, case, device, repeats):
    with torch.no_grad():
        leaves = leaves_of(sweep, case, device)
        for _ in range(min(repeats, sweep.repeats)):
            out = call(leaves, case)
    if not bool(out.isfinite().all()):
        raise Failed("out is not finite")
    return {}, ""


def run_lse_gradient(sweep, case, device, _):
    """Gradients through LSE, alone and beside the output's, within 0.02 of fp32's."""
    leaves = leaves_of(sweep, case, device, seed=42)
    exact = [x.detach().float().requires_grad_() for x in leaves]
    out, lse = call_with_lse(leaves, case)
    g, w = torch.randn_like(out), torch.randn_like(lse)
    got = torch.autograd.grad((out * g).sum() + (lse * w).sum(), leaves)
    s, _ = scores(*exact[:2], case["causal"])
    out_ref = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(s, dim=-1), exact[2])
    lse_ref = torch.logsumexp(s, dim=-1)
    want = torch.autograd.grad((out_ref * g.float()).sum() + (lse_ref * w).sum(), exact,
                               retain_graph=True)
    only = torch.autograd.grad((call_with_lse(leaves, case)[1] * w).sum(), leaves)
    only_ref = torch.autograd.grad((lse_ref * w).sum(), exact[:2])
    if only[2].abs().max().item() != 0:
        raise Failed("dv is not 0 where the loss depends on lse alone")
    shares = {}
    for names, xs, ys in ((("dq", "dk", "dv"), got, want), (("dq", "dk"), only, only_ref)):
        for name, x, y in zip(names, xs, ys):
            error = (x.float() - y).abs().max().item()
            if not error <= 0.02:
                raise Failed(f"{name} with a gradient of lse is off by {error:.3g} > 0.02")
            shares[name] = max(error / 0.02, shares.get(name, 0))
    return shares, ""


def run_lse_unused(sweep, case, device, _):
    """An LSE that is returned and not used changes no bit of the gradients; a used one does."""
    leaves = leaves_of(sweep, case, device, seed=42)
    case = case | {"deterministic": 1}
    g = torch.randn_like(leaves[0])
    plain = torch.autograd.grad(call(leaves, case), leaves, g)
    out, _ = call_with_lse(leaves, case, deterministic=True)
    unused = torch.autograd.grad(out, leaves, g)
    out, lse = call_with_lse(leaves, case, deterministic=True)
    used = torch.autograd.grad((out * g).sum() + (lse * torch.randn_like(lse)).sum(), leaves)
    for name, x, y, z in zip(("dq", "dk", "dv"), plain, unused, used):
        if not torch.equal(x, y):
            raise Failed(f"{name} changes when lse is returned and not used")
        if torch.equal(x, z) != (name == "dv"):
            raise Failed(f"{name} with a gradient of lse {'equals' if name != 'dv' else 'differs'}"
                         " the one without")
    return {}, ""


def run_empty(sweep, case, device, _):
    """No query: nothing. No key: zeros, lse -inf, gradients 0."""
    leaves = leaves_of(sweep, case, device)
    batch, seqlen_q, _, heads, _, _, dim_v = sweep.shape(case)
    out, lse = call_with_lse(leaves, case)
    if tuple(out.shape) != (batch, seqlen_q, heads, dim_v):
        raise Failed(f"out has the shape {tuple(out.shape)}")
    if tuple(lse.shape) != (batch, heads, seqlen_q):
        raise Failed(f"lse has the shape {tuple(lse.shape)}")
    if bool((out != 0).any()) or bool((lse != -math.inf).any()):
        raise Failed("a row without a key is not 0 with lse -inf")
    gradients = torch.autograd.grad(call(leaves, case).sum(), leaves)
    if any(bool((x != 0).any()) for x in gradients):
        raise Failed("a gradient is not 0")
    return {}, ""


def run_combine(sweep, case, device, _):
    """Partial results of any strides, some of them empty, against their weighted sum."""
    torch.random.manual_seed(1)
    batch, seqlen, _, heads, _, dim, _ = sweep.shape(case)
    parts = case["splits"]
    outs = torch.randn(2 * parts, batch, heads, seqlen, dim, device=device)
    outs = outs.transpose(2, 3)[:parts]
    lses = torch.randn(parts, batch, 2 * heads, seqlen, device=device)
    lses = lses.transpose(-1, -2)[..., :heads]
    lses[parts // 2:, :batch // 3] = -math.inf
    out, lse = lib.flash_attn_interface.flash_attn_combine(outs, lses,
                                                           out_dtype=DTYPES[case["dtype"]])
    lse_ref = torch.logsumexp(lses, 0)
    weights = torch.exp(lses - lse_ref).nan_to_num(0)
    ref = (weights[..., None] * outs.float()).sum(0)
    error = (lse - lse_ref).nan_to_num(0).abs().max().item()
    if not error <= 1e-5 * (1 + lse_ref.nan_to_num(0, 0, 0).abs().max().item()):
        raise Failed(f"lse is off by {error:.3g}")
    error, pt = (out.float() - ref).abs().max().item(), ref.to(out.dtype)
    allowed = 2 * (pt.float() - ref).abs().max().item()
    if not error <= allowed and not torch.allclose(out, pt, atol=1e-5, rtol=1e-5):
        raise Failed(f"out is off by {error:.3g} > {allowed:.3g}")
    return {"out": error / allowed if allowed > 0 else 0.0}, ""


def kinds():
    """What a sweep's `kind` names: a function of (sweep, case, device, repeats)."""
    import flash_attention_cache as cache
    import flash_attention_varlen as varlen
    return {"rule": run_rule, "repeat": run_repeat, "launch": run_launch, "empty": run_empty,
            "lse_gradient": run_lse_gradient, "lse_unused": run_lse_unused,
            "combine": run_combine, **varlen.KINDS, **cache.KINDS}


def run(sweep, case, device, repeats):
    """({tensor: error / allowed}, note); raises Failed."""
    return kinds()[sweep.kind](sweep, case, device, repeats)


# ---------------------------------------------------------------------------------------------
# What is not supported yet must be refused
# ---------------------------------------------------------------------------------------------

def refused_call(reason, case, device):
    """Calls what the case asks for at a small size; returns only if that was computed."""
    dim = min(case.get("d", 64), 256)
    dtype = torch.float16 if case.get("dtype") == "fp16" else torch.bfloat16
    q, k, v = (torch.zeros(1, 4, 2, size, device=device, dtype=dtype)
               for size in (dim, dim, case.get("dv") or dim))
    if reason == "qv":
        return lib.flash_attn_interface.flash_attn_func(q, k, v, qv=torch.zeros_like(v))
    if reason == "fp8":
        q, k, v = (x.to(torch.float8_e4m3fn) for x in (q, k, v))
    if case.get("pack") == "qkv":
        leaves = [torch.stack([q, k, v], 2)]
    else:
        leaves = [q, torch.stack([k, v], 2)] if case.get("pack") == "kv" else [q, k, v]
    more = {"softcap": 15.0} if reason == cases.WIDE_VALUES else {}
    return call(leaves, case | {"causal": case.get("causal", 0)}, **more)


def run_refused(reason, case, device):
    """How the library refuses the case; raises Failed where it computes something instead.

    NotImplementedError for what the drop-ins name; TypeError for a type of element that no kernel
    knows.
    """
    try:
        refused_call(reason, case, device)
    except NotImplementedError:
        return "NotImplementedError"
    except TypeError as error:
        if reason == "fp8":
            return "TypeError"
        raise Failed(f"{reason} is refused by a TypeError: {error}") from error
    raise Failed(f"{reason} was not refused: the argument was ignored")
