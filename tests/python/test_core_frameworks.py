#!/usr/bin/env python3
"""flashlab on PyTorch, CuPy and JAX arrays and on NumPy's bfloat16: types, devices, streams."""

import importlib
import os
import subprocess
import sys
import unittest

import core_oracle as oracle
import numpy as np

import flashlab
from flashlab import _core

SHAPE = (2, 19, 33, 4, 2, 24)


def module(name):
    """An optional module, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


torch = module("torch")
jax = module("jax")
cupy = module("cupy")
ml_dtypes = module("ml_dtypes")
TORCH_GPU = bool(torch and torch.cuda.is_available())
# JAX and CuPy share the GPU with the other tests: no preallocation.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _cupy_works():
    try:
        return cupy is not None and cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


class Framework(unittest.TestCase):
    """What every framework gives: o, lse and gradients of its type, where the inputs are."""

    def round_trip(self, convert, back, kind, dtype, causal="bottom-right"):
        q, k, v, d_o = oracle.arrays(1, *SHAPE)
        inputs = [convert(x) for x in (q, k, v, d_o)]
        # What was rounded on the way in is the truth.
        q, k, v, d_o = (back(x) for x in inputs)
        o, lse = _core.forward(*inputs[:3], causal=causal)
        gradients = _core.backward(inputs[3], *inputs[:3], o, lse, causal=causal)
        for array in (o, lse, *gradients):
            self.assertIsInstance(array, kind)
        expected = oracle.forward(q, k, v, causal=causal)
        oracle.close(self, back(o), expected[0], dtype, "o")
        oracle.close(self, back(lse), expected[1], "float32", "lse")
        for name, a, b in zip(("dq", "dk", "dv"), gradients,
                              oracle.backward(d_o, q, k, v, causal=causal)):
            oracle.close(self, back(a), b, dtype, name)
        return inputs, o, lse


@unittest.skipUnless(ml_dtypes, "skipped: no ml_dtypes")
class NumpyBfloat16(Framework):
    def test_round_trip(self):
        _, o, _ = self.round_trip(lambda x: x.astype(ml_dtypes.bfloat16),
                                  lambda x: x.astype("float32"), np.ndarray, "bfloat16")
        self.assertEqual(o.dtype, ml_dtypes.bfloat16)


@unittest.skipUnless(torch, "skipped: no PyTorch")
class Torch(Framework):
    devices = ["cpu"] + (["cuda"] if TORCH_GPU else [])

    def test_round_trip(self):
        for device in self.devices:
            for name in ("float64", "float32", "float16", "bfloat16"):
                if device == "cuda" and name == "float64":
                    continue
                with self.subTest(device=device, dtype=name):
                    dtype = getattr(torch, name)
                    _, o, lse = self.round_trip(
                        lambda x: torch.from_numpy(x).to(device, dtype),
                        lambda x: x.double().cpu().numpy(), torch.Tensor, name)
                    self.assertEqual((o.dtype, o.device.type), (dtype, device))
                    self.assertEqual(lse.dtype,
                                     torch.float64 if name == "float64" else torch.float32)

    def test_results_are_ordinary_tensors(self):
        q, k, v, _ = (torch.from_numpy(x) for x in oracle.arrays(2, *SHAPE))
        o, lse = _core.forward(q, k, v)
        for tensor in (o, lse):
            self.assertTrue(tensor.untyped_storage().resizable())
            self.assertTrue(tensor.is_contiguous())
            self.assertFalse(tensor.requires_grad)

    def test_without_the_c_exchange(self):
        # As PyTorch before 2.10; the choice is made once per type, hence a process of its own.
        program = "from flashlab import _arrays; _arrays.Torch.exchange = False\n" \
                  "import test_core_frameworks as tests, unittest\n" \
                  "names = 'test_round_trip', 'test_views_and_parameters', 'test_refused'\n" \
                  "suite = unittest.TestSuite(map(tests.Torch, names))\n" \
                  "raise SystemExit(not unittest.TextTestRunner().run(suite).wasSuccessful())"
        done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True,
                              cwd=os.path.dirname(os.path.abspath(__file__)), check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Ran 3 tests", done.stderr)

    def test_views_and_parameters(self):
        q, k, v, d_o = (torch.from_numpy(x) for x in oracle.arrays(3, *SHAPE))
        first = q.transpose(1, 2).contiguous().transpose(1, 2)
        negated = torch.complex(q, q).conj().imag  # -q, whose sign is pending
        for a in (first, torch.nn.Parameter(q), q[..., ::2], negated, negated[..., :1]):
            with self.subTest(strides=a.stride(), negated=a.is_neg()):
                b = k[..., :a.shape[3]]
                o = _core.forward(a, b, v)[0]
                truth = oracle.forward(a.detach().resolve_neg().numpy(), b.numpy(), v.numpy())[0]
                oracle.close(self, o.numpy(), truth, "float32")
        o, lse = _core.forward(q, k, v)
        got = _core.backward(torch.ones(()).expand_as(d_o), q, k, v, o, lse)
        truth = oracle.backward(np.ones(d_o.shape), q.numpy(), k.numpy(), v.numpy())
        for a, b in zip(got, truth):
            oracle.close(self, a.numpy(), b, "float32")

    def test_attention_has_gradients(self):
        q, k, v, d_o = (torch.from_numpy(x) for x in oracle.arrays(4, *SHAPE))
        q.requires_grad_()
        flashlab.attention(q, k, v).backward(d_o)
        truth = oracle.backward(d_o.numpy(), q.detach().numpy(), k.numpy(), v.numpy())
        oracle.close(self, q.grad.numpy(), truth[0], "float32")
        with self.assertRaisesRegex(ValueError, "out.*q"):
            flashlab.attention(q, k, v, out=torch.empty_like(d_o))
        with torch.no_grad():
            out = torch.empty_like(d_o)
            self.assertIs(flashlab.attention(q, k, v, out=out), out)

    def test_attention_is_seen_by_whoever_has_to(self):
        q, k, v, _ = (torch.from_numpy(x) for x in oracle.arrays(8, *SHAPE))
        expected = _core.forward(q, k, v)[0]
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(flashlab.attention(q, k, v).dtype, torch.bfloat16)
        mapped = torch.func.vmap(flashlab.attention)(q[None], k[None], v[None])
        self.assertTrue(torch.equal(mapped[0], expected))
        make_fx = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
        traced = make_fx(lambda q, k, v: flashlab.attention(q, k, v))(q, k, v)
        self.assertIn("attention_forward", str(traced.graph))
        with self.assertRaisesRegex(TypeError, "v: got"):
            flashlab.attention(q, k, None)

    def test_compiled_before_any_eager_call(self):
        program = "import torch, flashlab\n" \
                  "q = torch.randn(1, 8, 2, 16, requires_grad=True)\n" \
                  "attend = torch.compile(flashlab.attention, fullgraph=True, " \
                  "backend='aot_eager')\n" \
                  "attend(q, q, q, causal=True).sum().backward()\n" \
                  "assert q.grad.abs().max() > 0"
        done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_refused(self):
        q, k, v, _ = (torch.from_numpy(x) for x in oracle.arrays(5, *SHAPE))
        cases = [(TypeError, "k.*q's framework", (q, k.numpy(), v)),
                 (TypeError, "q.dtype.*int64", (q.long(), k, v)),
                 (TypeError, "k.dtype", (q, k.half(), v)),
                 ((RuntimeError, ValueError), "^q: ", (q.to("meta"), k, v)),
                 ((RuntimeError, ValueError), "^q: ", (q.to_sparse(), k, v))]
        for kind, words, arguments in cases:
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                _core.forward(*arguments)


@unittest.skipUnless(TORCH_GPU, "skipped: no GPU")
class TorchGpu(Framework):
    def tensors(self, *shape):
        return [torch.from_numpy(x).to("cuda", torch.bfloat16)
                for x in oracle.arrays(6, *shape)]

    def test_current_stream(self):
        q, k, v, _ = self.tensors(2, 2048, 2048, 8, 8, 128)
        expected = _core.forward(q, k, v)[0]
        torch.cuda.synchronize()
        side = torch.cuda.Stream()
        for _ in range(3):
            late = torch.empty_like(q)
            with torch.cuda.stream(side):
                torch.cuda._sleep(20_000_000)
                late.copy_(q)
                o, _ = _core.forward(late, k, v)
                pending = not side.query()
            side.synchronize()
            self.assertTrue(pending, "the call waited for the GPU")
            self.assertTrue(torch.equal(o, expected))

    def test_memory_is_torchs(self):
        q, k, v, _ = self.tensors(1, 512, 512, 4, 4, 64)
        _core.forward(q, k, v)
        before = torch.cuda.memory_allocated()
        results = _core.forward(q, k, v)
        bytes_of = sum(x.numel() * x.element_size() for x in results)
        self.assertEqual(torch.cuda.memory_allocated() - before, bytes_of)
        del results
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_graph_capture(self):
        q, k, v, d_o = self.tensors(1, 300, 300, 4, 4, 64)

        def step():
            o, lse = _core.forward(q, k, v, causal=True)
            return [o, lse, *_core.backward(d_o, q, k, v, o, lse, causal=True,
                                            deterministic=True)]
        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        q.mul_(2)
        graph.replay()
        for a, b in zip(captured, step()):
            self.assertTrue(torch.equal(a, b))

    def test_refused(self):
        q, k, v, _ = self.tensors(1, 16, 16, 2, 2, 64)
        cases = [(ValueError, "k.device.*cpu.*cuda", (q, k.cpu(), v)),
                 (NotImplementedError, "fp64", (q.double(), k.double(), v.double()))]
        for kind, words, arguments in cases:
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                _core.forward(*arguments)
        if torch.cuda.device_count() > 1:
            foreign = torch.cuda.Stream(device=1).cuda_stream
            with torch.cuda.stream(torch.cuda.ExternalStream(foreign, device=0)), \
                    self.assertRaisesRegex(ValueError, "stream"):
                _core.forward(q, k, v)


@unittest.skipUnless(_cupy_works(), "skipped: no CuPy with a GPU")
class Cupy(Framework):
    def test_round_trip(self):
        for name in ("float32", "float16"):
            with self.subTest(dtype=name):
                _, o, _ = self.round_trip(lambda x: cupy.asarray(x.astype(name)), cupy.asnumpy,
                                          cupy.ndarray, name)
                self.assertEqual(o.dtype, name)

    def test_strides_and_current_stream(self):
        q, k, v = (cupy.asarray(x.astype("float16")) for x in oracle.arrays(7, *SHAPE)[:3])
        truth = oracle.forward(*(cupy.asnumpy(x) for x in (q[:, ::-1], k[..., ::-1], v)))[0]
        with cupy.cuda.Stream(non_blocking=True) as side:
            o, _ = _core.forward(q[:, ::-1], k[..., ::-1], v)
            side.synchronize()
        oracle.close(self, cupy.asnumpy(o), truth, "float16")


@unittest.skipUnless(jax, "skipped: no JAX")
class Jax(Framework):
    def test_round_trip(self):
        places = jax.devices("cpu")
        if jax.default_backend() == "gpu":
            places += jax.devices("gpu")[:1]
        for place in places:
            for name in ("float32", "float16", "bfloat16"):
                with self.subTest(place=str(place), dtype=name):
                    inputs, o, _ = self.round_trip(
                        lambda x: jax.device_put(jax.numpy.asarray(x, name), place),
                        lambda x: np.asarray(x.astype("float32")), jax.Array, name)
                    self.assertEqual((o.dtype, o.devices()), (inputs[0].dtype, {place}))
                    # The framework goes on with the results.
                    self.assertTrue(bool(jax.numpy.isfinite(o.astype("float32") * 2).all()))

    def test_tracers_are_refused(self):
        q = jax.numpy.ones((1, 4, 1, 8))
        with self.assertRaisesRegex(TypeError, "q: .*pure_callback"):
            jax.jit(lambda x: _core.forward(x, x, x)[0])(q)


if __name__ == "__main__":
    unittest.main()
