"""flashlab.transformers: attn_implementation="flashlab" beside "eager" on tiny random models."""

import unittest
from unittest import mock

from torch_cases import Judge

import torch

try:
    import transformers
    import flashlab.transformers as ours
except ImportError as error:
    raise unittest.SkipTest("skipped: no transformers 5") from error

VOCABULARY = 97
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128, "pad_token_id": 0}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4,
                                            n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0,
                                            attn_pdrop=0.0),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=7),
    "gemma2": lambda: transformers.Gemma2Config(**SMALL, head_dim=8, sliding_window=7,
                                                attn_logit_softcapping=5.0),
    "gpt_oss": lambda: transformers.GptOssConfig(**SMALL, head_dim=8, sliding_window=7,
                                                 num_local_experts=2, num_experts_per_tok=1),
}


def model(kind, implementation, dtype=torch.float32):
    """The same weights whatever the implementation and the type."""
    torch.manual_seed(1)
    config = CONFIGS[kind]()
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager",
                                                         experts_implementation="eager")
    with torch.no_grad():
        for parameter in made.parameters():
            # Sharp probabilities: greedy tokens without ties, and masks that are felt.
            parameter.mul_(4) if parameter.dim() > 1 else parameter.add_(
                torch.randn_like(parameter) * 0.1)
    made.set_attn_implementation(implementation)
    return made.to(dtype).eval()


class Models(Judge):
    def setUp(self):
        torch.manual_seed(0)
        self.ids = torch.randint(1, VOCABULARY, (3, 19))
        self.lengths = torch.tensor([19, 6, 13])

    def three(self, kind, run):
        """`run` on flashlab, on the truth in fp64 and on eager in flashlab's type. Eager has its
        softmax in fp32 whatever the type, so the truth is sdpa's where a model has that."""
        truth = "eager" if kind in ("gemma2", "gpt_oss") else "sdpa"
        results = []
        for implementation, dtype in (("flashlab", torch.float32), (truth, torch.float64),
                                      ("eager", torch.float32)):
            made = model(kind, implementation, dtype)
            with mock.patch.object(ours, "attention", wraps=ours.attention) as called:
                results.append(run(made))
            self.assertEqual(called.called, implementation == "flashlab")
        return results

    def judged(self, kind, run):
        """Lists of tensors by the rule: twice the error of eager in the same type for the first,
        three times for the gradients behind it, as flash-attn's tests have it."""
        for at, (got, truth, naive) in enumerate(zip(*self.three(kind, run))):
            naive = naive if at == 0 else truth + 1.5 * (naive - truth)
            self.assert_near(got, truth, naive, f"result {at} of {kind}")

    @staticmethod
    def with_gradients(made, keep=None, **given):
        """Logits where tokens are, and gradients of all parameters."""
        logits = made(**given).logits
        logits = logits if keep is None else logits[keep]
        weights = torch.sin(torch.arange(logits.numel()).to(logits)).reshape(logits.shape)
        parameters = [p for p in made.parameters() if p.requires_grad]
        return [logits.detach(), *torch.autograd.grad((logits * weights).sum(), parameters)]

    def test_logits_and_gradients(self):
        for kind in CONFIGS:
            with self.subTest(kind):
                self.judged(kind, lambda made: self.with_gradients(made.train(),
                                                                   input_ids=self.ids))

    def test_padding_on_either_side(self):
        at = torch.arange(19)[None]
        for side, mask in (("right", at < self.lengths[:, None]),
                           ("left", at >= 19 - self.lengths[:, None])):
            for kind in ("llama", "gpt2"):
                with self.subTest(kind, side=side):
                    positions = (mask.cumsum(-1) - 1).clamp(min=0)
                    self.judged(kind, lambda made: self.with_gradients(
                        made, mask, input_ids=self.ids, attention_mask=mask.long(),
                        position_ids=positions))

    def packed(self):
        """[1, tokens] of the three sequences, their positions and offsets."""
        ids = torch.cat([row[:n] for row, n in zip(self.ids, self.lengths)])[None]
        positions = torch.cat([torch.arange(n) for n in self.lengths])[None]
        offsets = torch.nn.functional.pad(self.lengths.cumsum(0), (1, 0)).int()
        return ids, positions, offsets

    def test_packed_sequences(self):
        ids, positions, offsets = self.packed()
        for kind in ("llama", "gpt2", "mistral"):
            alone = [self.ids[b:b + 1, :n] for b, n in enumerate(self.lengths)]

            def run(made):
                if made.config._attn_implementation != "flashlab":
                    return [torch.cat([made(input_ids=x).logits for x in alone], 1).detach()]
                first = made(input_ids=ids, position_ids=positions, use_cache=False).logits
                more = {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": 19,
                        "max_length_k": 19} if kind != "gpt2" else {}
                again = made(input_ids=ids, position_ids=positions, use_cache=False, **more).logits
                self.assert_equal(first if kind != "mistral" else again, again, "by cu_seq_lens")
                return [again.detach()]

            with self.subTest(kind):
                self.judged(kind, run)

    def test_packed_sequences_make_no_mask(self):
        ids, positions, offsets = self.packed()
        made = model("llama", "flashlab")
        with mock.patch.object(ours.masking_utils, "sdpa_mask") as matrix, mock.patch.object(
                ours, "attention", wraps=ours.attention) as called:
            made(input_ids=ids, position_ids=positions, use_cache=False)
        matrix.assert_not_called()
        self.assertEqual(called.call_args.kwargs["cu_seqlens_q"].tolist(), offsets.tolist())

    def test_packed_gradients(self):
        ids, positions, _ = self.packed()
        self.judged("llama", lambda made: self.with_gradients(
            made, input_ids=ids, position_ids=positions, use_cache=False))

    def test_twenty_greedy_tokens(self):
        prompt = self.ids[:, :9]
        mask = torch.ones_like(prompt)
        mask[1, :4] = 0  # padded on the left
        for kind in CONFIGS:
            for cache in (None, "static"):
                if kind in ("gpt_oss", "gemma2") and cache:
                    continue  # their layers choose their own caches
                with self.subTest(kind, cache=cache):
                    got, _, expected = self.three(kind, lambda made: made.generate(
                        prompt, attention_mask=mask, max_new_tokens=20, min_new_tokens=20,
                        do_sample=False, cache_implementation=cache, pad_token_id=0,
                        disable_compile=True))
                    self.assertEqual(got.shape, (3, 29))
                    self.assertEqual(got.tolist(), expected.tolist())

    def test_a_prefill_in_parts(self):
        for kind in ("llama", "mistral"):
            for make in (lambda config: transformers.DynamicCache(config=config),
                         lambda config: transformers.StaticCache(config=config, max_cache_len=32)):
                def run(made):
                    cache = make(made.config)
                    with torch.no_grad():
                        return [made(input_ids=part, past_key_values=cache).logits
                                for part in self.ids.split([8, 7, 1, 3], 1)]
                with self.subTest(kind):
                    self.judged(kind, run)

    def test_dropout_in_training(self):
        made = model("llama", "flashlab").train()
        for layer in made.model.layers:
            layer.self_attn.attention_dropout = 0.4
        outs = []
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            outs.append(made(input_ids=self.ids).logits)
        self.assert_equal(outs[0], outs[1], "logits")
        self.assertFalse(torch.equal(outs[0], outs[2]))

    def test_one_graph(self):
        made = model("llama", "flashlab")
        torch.compiler.reset()
        compiled = torch.compile(made, fullgraph=True, backend="aot_eager")
        self.assert_close(compiled(input_ids=self.ids, use_cache=False).logits,
                          made(input_ids=self.ids, use_cache=False).logits, "logits", 1e-4)

    def test_what_is_refused(self):
        q = torch.randn(1, 4, 5, 8)
        module = torch.nn.Module()
        for name in ("output_attentions", "head_mask", "block_table"):
            with self.subTest(name), self.assertRaisesRegex(NotImplementedError, f"^{name}: "):
                ours.attention_forward(module, q, q, q, None, **{name: True})
        with self.assertRaisesRegex(NotImplementedError, "^position_bias: "):
            ours.attention_forward(module, q, q, q, None,
                                   position_bias=torch.zeros(1, 4, 5, 5, requires_grad=True))
        with self.assertRaisesRegex(ValueError, "^cu_seq_lens_q, cu_seq_lens_k: "):
            ours.attention_forward(module, q, q, q, None, cu_seq_lens_q=torch.tensor([0, 5]))
        with self.assertRaisesRegex(NotImplementedError, "^sliding_window: "):
            ours.attention_forward(module, q, q, q, None, is_causal=False, sliding_window=3)


if __name__ == "__main__":
    unittest.main()
