"""What flashlab.torch refuses: the right exception, the argument named, the process alive."""

import unittest

from torch_cases import inputs, needs_cuda, on_devices

import torch

import flashlab.torch as flash


NAN, INF = float("nan"), float("inf")
WORDS = ("0.1", [0.1], 1j, torch.ones(2))
EITHER = (TypeError, ValueError)
# Argument, exception, and what it refuses. flashlab.torch.attention takes words for causal.
NUMBERS = [
    ("scale", ValueError, (NAN, INF, -INF)), ("scale", TypeError, WORDS),
    ("softcap", ValueError, (NAN, INF, -1.0, 0.0)), ("softcap", TypeError, WORDS),
    ("dropout_p", ValueError, (NAN, INF, -1.0, 1, 1.5)), ("dropout_p", TypeError, (None, *WORDS)),
    ("window", EITHER, (3, "ab", (1,), (1.5, 2), (NAN, 1), ("1", "2"), (2**70, 0),
                        (1, 2, 3, 4), (1, 2, "top"))),
    ("causal", TypeError, ("top-left", "bottom-right")),
]
FLASH_ATTN = {"scale": "softmax_scale", "window": "window_size"}
FLASH_ATTN_NONE = ("-1.0", "0.0")  # softcaps: flash-attn takes what is not above 0 for none
SDPA = {"softcap": None, "window": None, "causal": "is_causal"}


@on_devices
class Refused:

    def raises(self, kind, pattern, function, *args, **kwargs):
        """Eager, and on the meta device, where the kernels are not asked."""
        with self.subTest(pattern):
            with self.assertRaisesRegex(kind, pattern):
                function(*args, **kwargs)
        q, k, v = inputs(device=self.device)
        self.assertEqual(flash.attention(q, k, v).shape, q.shape)  # alive

    def both(self, kind, pattern, q, k, v, **options):
        self.raises(kind, pattern, flash.attention, q, k, v, **options)
        options = {name: value.detach().to("meta") if isinstance(value, torch.Tensor) else value
                   for name, value in options.items()}
        self.raises(kind, pattern, flash.attention,
                    *(t.detach().to("meta") for t in (q, k, v)), **options)

    def test_shapes(self):
        q, k, v = inputs((2, 5, 4, 8), device=self.device, requires_grad=False)
        self.both(ValueError, r"^q\b.*dim", q[0], k, v)
        self.both(ValueError, r"^k\b.*dim", q, k[0], v)
        self.both(ValueError, r"^k\b", q, k[:1], v)
        self.both(ValueError, r"^k\b", q, k[..., :4], v)
        self.both(ValueError, r"^k\b.*heads|^q\b.*heads", q, k[:, :, :3], v[:, :, :3])
        self.both(ValueError, r"^v\b", q, k, v[:, :3])
        self.both(ValueError, r"^v\b", q, k, v[:, :, :2])
        self.both(ValueError, r"^q\b.*(head_dim|dim)", q[..., :0], k[..., :0], v)

    def test_dtypes(self):
        q, k, v = inputs((2, 5, 4, 8), device=self.device, requires_grad=False)
        self.both(TypeError, r"^q\b", q.int(), k.int(), v.int())
        self.both(TypeError, r"^q\b", q.bool(), k.bool(), v.bool())
        self.both(TypeError, r"^q\b", q.cfloat(), k.cfloat(), v.cfloat())
        self.both(TypeError, r"^k\b", q, k.half(), v)
        self.both(TypeError, r"^v\b", q, k, v.bfloat16())
        self.both(TypeError, r"^mask\b", q, k, v, mask=torch.ones(5, 5, dtype=torch.int32,
                                                                  device=self.device))
        self.both(TypeError, "^mask.*bool.*mask != 0", q, k, v,  # Hugging Face's attention_mask
                  mask=torch.ones(2, 1, 1, 5, dtype=torch.int64, device=self.device))
        self.both(NotImplementedError, r"^q\b.*float8.*8 bits is not supported",
                  *(t.to(torch.float8_e4m3fn) for t in (q, k, v)))
        self.both(ValueError, '^precision.*tf32.*ieee', q.half(), k.half(), v.half(),
                  precision="tf32")
        with self.assertRaisesRegex(RuntimeError, "floating point"):  # torch's own rule
            q.int().requires_grad_()

    def test_not_tensors(self):
        q, k, v = inputs((2, 5, 4, 8), device=self.device)
        self.raises(TypeError, "^q: got builtins.list", flash.attention, [1.0], k, v)
        self.raises(TypeError, "^k: got builtins.NoneType", flash.attention, q, None, v,
                    causal=True)
        self.raises(TypeError, "^mask: got builtins.str", flash.attention, q, k, v, mask="causal")
        self.raises(TypeError, "^key: got builtins.int", flash.scaled_dot_product_attention,
                    q, 1, v)
        self.raises(TypeError, "^qkv: got builtins.NoneType", flash.flash_attn_qkvpacked_func, None)
        self.raises(TypeError, "^q: got builtins.int", flash.flash_attn_kvpacked_func, 1,
                    torch.stack([k, v], 2))
        self.raises(NotImplementedError, "^q: nested and sparse", flash.attention,
                    q.detach().to_sparse(), k, v)

    def test_no_tensor_for_a_key(self):
        q, k, v = inputs((2, 5, 4, 8), device=self.device)
        self.raises(TypeError, "^k: got builtins.NoneType", flash.attention, q, None, v)
        self.raises(TypeError, "^v: got builtins.NoneType", flash.attention, q, k, None)
        self.raises(TypeError, "^value: got builtins.NoneType",
                    flash.scaled_dot_product_attention, q, k, None)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            self.raises(TypeError, "^k: got builtins.NoneType", flash.attention, q, None, v)

    def test_mixed_devices(self):
        q, k, v = inputs((2, 5, 4, 8), device=self.device, requires_grad=False)
        mask = torch.ones(5, 5, dtype=torch.bool)
        elsewhere = ["meta"] if self.device == "cpu" else ["meta", "cpu"]
        for device in elsewhere:
            expected = f"is on {device}, expected q's device"
            self.raises(ValueError, f"^k: {expected}", flash.attention, q, k.to(device), v)
            self.raises(ValueError, f"^v: {expected}", flash.attention, q, k, v.to(device))
            self.raises(ValueError, f"^mask: {expected}", flash.attention, q, k, v,
                        mask=mask.to(device))
            self.raises(ValueError, f"^key: {expected}", flash.scaled_dot_product_attention, q,
                        k.to(device), v)

    def test_values(self):
        q, k, v = inputs((2, 5, 4, 8), 7, device=self.device)
        self.both(ValueError, "^causal.*top-left.*bottom-right", q, k, v, causal=True)
        self.both(ValueError, "^causal.*'left'", q, k, v, causal="left")
        self.both(ValueError, "^precision.*'fp32'", q, k, v, precision="fp32")
        self.raises((ValueError, TypeError), "^scale", flash.attention, q, k, v, scale="one")
        self.raises(ValueError, "^scale", flash.attention, q, k, v, scale=float("nan"))
        self.both(ValueError, r"^mask\b", q, k, v, mask=torch.ones(5, 6, dtype=torch.bool,
                                                                   device=self.device))
        if self.device == "cpu":
            self.raises(NotImplementedError, "tf32", flash.attention, q, k, v, precision="tf32")

    def test_numbers(self):
        """As for other arrays, and where no kernel runs; each function by its own names."""
        q, k, v = inputs((2, 5, 4, 8), device=self.device)
        t = [x.transpose(1, 2) for x in (q, k, v)]
        qkv, kv = torch.stack([q, k, v], 2), torch.stack([k, v], 2)
        meta = [x.detach().to("meta") for x in (q, k, v)]
        doors = {
            "attention": (lambda **given: flash.attention(q, k, v, **given), {}),
            "meta": (lambda **given: flash.attention(*meta, **given), {}),
            "sdpa": (lambda **given: flash.scaled_dot_product_attention(*t, **given), SDPA),
            "flash-attn": (lambda **given: flash.flash_attn_func(q, k, v, **given), FLASH_ATTN),
            "qkvpacked": (lambda **given: flash.flash_attn_qkvpacked_func(qkv, **given),
                          FLASH_ATTN),
            "kvpacked": (lambda **given: flash.flash_attn_kvpacked_func(q, kv, **given),
                         FLASH_ATTN),
        }
        for door, (run, names) in doors.items():
            for name, kinds, values in NUMBERS:
                name = names.get(name, name) if names or name != "causal" else None
                for value in values if name else ():
                    if names is FLASH_ATTN and name == "softcap" and repr(value) in FLASH_ATTN_NONE:
                        run(**{name: value})
                        continue
                    with self.subTest(door, **{name: str(value)}), \
                            self.assertRaisesRegex(kinds, rf"^{name}\b.*got "):
                        run(**{name: value})
        self.assertEqual(flash.attention(q, k, v).shape, q.shape)  # alive

    def test_seeds_of_dropout(self):
        q, k, v = inputs((2, 5, 4, 8), device=self.device, requires_grad=False)
        for kinds, seed in ((ValueError, (1,)), (ValueError, (1.5, 2)), (ValueError, (1, 2, 3)),
                            ((ValueError, TypeError), 3), ((ValueError, TypeError), "ab"),
                            (TypeError, torch.tensor([1, 2], dtype=torch.int32)),
                            (ValueError, torch.tensor([1, 2, 3]))):
            self.both(kinds, "^dropout_seed.*got .*expected", q, k, v, dropout_p=0.5,
                      dropout_seed=seed.to(self.device) if isinstance(seed, torch.Tensor) else seed)

    def test_shapes_of_slopes_and_windows(self):
        q, k, v = inputs((2, 5, 4, 8), 7, device=self.device, requires_grad=False)
        for slopes in (torch.ones(3), torch.ones(3, 4), torch.ones(1, 1, 4)):
            self.both(ValueError, "^alibi_slopes", q, k, v, alibi_slopes=slopes.to(self.device))
        self.both(TypeError, "^alibi_slopes.*(fp64|float64)", q, k, v,
                  alibi_slopes=torch.ones(4, dtype=torch.float64, device=self.device))
        self.raises(TypeError, "^alibi_slopes: got builtins.list", flash.attention, q, k, v,
                    alibi_slopes=[1.0] * 4)
        self.both(ValueError, "^window.*top-left.*bottom-right", q, k, v, window=(2, 1))
        self.both(ValueError, "^window.*alignment", q, k, v, window=(2, 1, "top-left"),
                  causal="bottom-right")

    def test_mask_gradients(self):
        q, k, v = inputs((2, 5, 4, 8), device=self.device)
        mask = torch.zeros(5, 5, device=self.device, requires_grad=True)
        pattern = "^mask: a gradient of the mask is not supported"
        self.raises(NotImplementedError, pattern, flash.attention, q, k, v, mask=mask)
        self.raises(NotImplementedError, pattern, torch.ops.flashlab.attention_forward, q, k, v,
                    mask)
        self.raises(NotImplementedError, "^attn_mask: a gradient",
                    flash.scaled_dot_product_attention, *(t.transpose(1, 2) for t in (q, k, v)),
                    attn_mask=mask)
        with torch.no_grad():
            flash.attention(q, k, v, mask=mask)

    def test_flash_attn(self):
        q, k, v = inputs((2, 5, 4, 8), device=self.device)
        qkv, kv = torch.stack([q, k, v], 2), torch.stack([k, v], 2)
        self.raises(TypeError, r"^window_size: got None, expected \(left, right\)",
                    flash.flash_attn_func, q, k, v, window_size=None)
        self.raises(ValueError, r"^qkv: got shape \(2, 5, 2, 4, 8\)",
                    flash.flash_attn_qkvpacked_func, kv)
        self.raises(ValueError, "^kv: got shape", flash.flash_attn_kvpacked_func, q, qkv)

    def test_sdpa_names_the_axes_of_its_caller(self):
        q = torch.randn(1, 4, 8, 16, device=self.device)
        sdpa = flash.scaled_dot_product_attention
        self.raises(ValueError, r"^value.shape\[-2\]: got 7, expected 8: value must be \[batch, "
                    r"heads_k, seqlen_k, head_dim_v\] = \[1, 4, 8, 16\]", sdpa, q, q, q[:, :, :7])
        self.raises(ValueError, r"^key.shape\[-1\]: got 12, expected 16: key must be \[batch, "
                    r"heads_k, seqlen_k, head_dim\] = \[1, 4, 8, 16\]", sdpa, q, q[..., :12], q)

    def test_scaled_dot_product_attention(self):
        q, k, v = (t.transpose(1, 2) for t in inputs((2, 5, 4, 8), device=self.device))
        sdpa = flash.scaled_dot_product_attention
        self.raises(ValueError, "^dropout_p", sdpa, q, k, v, None, -0.1)
        mask = torch.ones(5, 5, dtype=torch.bool, device=self.device)
        self.raises(ValueError, "^attn_mask: cannot be combined with is_causal", sdpa, q, k, v,
                    mask, 0.0, True)
        self.raises(TypeError, "^attn_mask", sdpa, q, k, v, mask.int())
        self.raises(ValueError, "^attn_mask: got 1 dimensions", sdpa, q, k, v, mask[0])
        self.raises(ValueError, "^attn_mask", sdpa, q, k, v, mask[:, :3])
        self.raises(ValueError, "^attn_mask: leading dimensions", sdpa, q[0], k[0], v[0],
                    mask.expand(3, 1, 5, 5))
        self.raises(ValueError, "^query: got 1 dimensions", sdpa, q[0, 0, 0], k, v)
        self.raises(ValueError, "^key.*enable_gqa=True", sdpa, q, k[:, :2], v[:, :2])
        self.raises(ValueError, "^query: 3 heads", sdpa, q[:, :3], k[:, :2], v[:, :2],
                    enable_gqa=True)
        self.raises(ValueError, "leading dimensions", sdpa, q, k.expand(3, 2, 4, 5, 8)[:, 0],
                    v.expand(3, 2, 4, 5, 8)[:, 0])
        self.raises(ValueError, r"^key\b", sdpa, q, k[..., :4], v)
        self.raises(TypeError, r"^value\b", sdpa, q, k, v.double())

    @needs_cuda
    def test_device_mix(self):
        q, k, v = inputs((2, 5, 4, 8), device="cuda")
        for pattern, tensors in ((r"^k\b", (q, k.cpu(), v)), (r"^v\b", (q, k, v.cpu())),
                                 (r"^k\b", (q.cpu(), k, v.cpu()))):
            self.raises((ValueError, RuntimeError), pattern, flash.attention, *tensors)
        self.raises((ValueError, RuntimeError), r"^mask\b", flash.attention, q, k, v,
                    mask=torch.ones(5, 5, dtype=torch.bool))
        self.raises((TypeError, NotImplementedError), "", flash.attention,
                    *(t.double() for t in (q, k, v)))


class Import(unittest.TestCase):

    def test_the_import_is_cheap(self):
        import subprocess
        import sys
        code = "import sys, flashlab.torch; print('torch._dynamo' in sys.modules)"
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                               check=True).stdout
        self.assertEqual(shown.strip(), "False")


class WithoutTorch(unittest.TestCase):

    def test_the_import_says_what_to_install(self):
        import subprocess
        import sys
        code = ("import sys; sys.modules['torch'] = None\n"
                "try:\n    import flashlab.torch\n"
                "except ImportError as error:\n    print(error)")
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                               check=True).stdout
        self.assertIn("pip install torch", shown)


if __name__ == "__main__":
    unittest.main()
