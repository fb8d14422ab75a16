"""The program on folders that transformers has saved, and transformers on the program's."""

import json
import math
import os
import re
import struct
import subprocess
import tempfile
import unittest

import torch_cases  # skips without PyTorch

import torch

try:
    import tokenizers
    import transformers
except ImportError as error:
    raise unittest.SkipTest("skipped: no transformers") from error

# Beside the package, as a wheel has it; a test of one file alone names another.
PROGRAM = os.environ.get("FLASHLAB_PROGRAM") or os.path.join(
    os.environ.get("PYTHONPATH", "").split(os.pathsep)[0], "flashlab", "bin", "flashlab")
TEXT = ("It was the best of times, it was the worst of times, it was the age of wisdom, it was "
        "the age of foolishness, it was the epoch of belief… 12 naïve sentences, or more!\n") * 12
VOCABULARY, CONTEXT = 300, 64
SIZES = {"layers": 2, "width": 64, "heads": 4}
TINY = ["--layers", "2", "--width", "32", "--heads", "2", "--hidden", "48", "--context", "32",
        "--batch", "2", "--steps", "3", "--evaluate-every", "0", "--threads", "2"]


def flashlab(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.returncode}: {done.stderr}")
    return done.stdout


def byte_pairs():
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY - 7, special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>")


def drawn(model, seed=0):
    """Every tensor drawn, biases and norms too, and apart enough for a greedy choice."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread = torch.randn_like(parameter) * 0.15
            parameter.copy_(spread + 1 if "ln_" in name or "norm" in name else spread)
    return model.eval()


def gpt2():
    return drawn(transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=SIZES["width"], n_head=SIZES["heads"],
        n_layer=SIZES["layers"])))


def llama():
    return drawn(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=CONTEXT, hidden_size=SIZES["width"],
        intermediate_size=96, num_hidden_layers=SIZES["layers"],
        num_attention_heads=SIZES["heads"], num_key_value_heads=SIZES["heads"])))


# What small models of the other families have beside these sizes.
USUAL = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "hidden_size": 64,
         "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2}


def llama3():
    return drawn(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **USUAL, tie_word_embeddings=True, rope_parameters={
            "rope_theta": 500000.0, "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32})))


def mistral():
    return drawn(transformers.MistralForCausalLM(transformers.MistralConfig(
        **USUAL, head_dim=24, sliding_window=11)))


def qwen2():
    return drawn(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        **USUAL, tie_word_embeddings=True)))


def qwen3():
    return drawn(transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**USUAL, head_dim=32)))


def gemma2():
    return drawn(transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **USUAL, head_dim=32, query_pre_attn_scalar=24, sliding_window=9,
        attn_logit_softcapping=3.0, final_logit_softcapping=4.0, attn_implementation="eager")))


FAMILIES = (llama3, mistral, qwen2, qwen3, gemma2)


def loss_by_windows(model, ids, window, stride):
    """(nats, tokens): every token but the first once, as docs/training.md says."""
    nats, begin, scored = 0.0, 0, 1
    while scored < len(ids):
        end = min(begin + window + 1, len(ids))
        row = torch.tensor([ids[begin:end]])
        with torch.no_grad():
            logits = model(row[:, :-1]).logits[0].double()
        losses = torch.nn.functional.cross_entropy(logits, row[0, 1:], reduction="none")
        nats += losses[-(end - scored):].sum().item()
        scored, begin = end, begin + stride
    return nats, len(ids) - 1


class Weights(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.text = self.path("text.txt")
        with open(self.text, "w", encoding="utf-8") as file:
            file.write(TEXT)

    def path(self, name):
        return os.path.join(self.folder, name)

    def scored(self, folder, *more):
        return json.loads(flashlab("evaluate", "--checkpoint", folder, *more, "--threads", "2",
                                   "--json", "-"))["files"][0]

    def compare_loss(self, folder, model, ids, tolerance=1e-6):
        for window, stride in ((CONTEXT, CONTEXT), (CONTEXT, 16), (32, 8)):
            ours = self.scored(folder, "--text", self.text, "--window", str(window), "--stride",
                               str(stride))
            nats, count = loss_by_windows(model, ids, window, stride)
            self.assertEqual(ours["tokens"], count)
            self.assertAlmostEqual(ours["loss"], nats / count, delta=tolerance)

    def opened(self, folder):
        """transformers' model of a folder, in which no key is missing or too much."""
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager")
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(told[what], what)
        return model.eval()

    def test_folders_of_transformers_are_read(self):
        words = byte_pairs()
        ids = words.encode(TEXT, add_special_tokens=False)
        self.assertLess(max(ids), VOCABULARY - 7)  # the table has rows that no word has
        for make in (gpt2, llama, *FAMILIES):
            model = make()
            for more in ({}, {"max_shard_size": "60KB"}):
                folder = self.path(make.__name__ + str(len(more)))
                model.save_pretrained(folder, **more)
                words.save_pretrained(folder)
                whole = os.path.exists(os.path.join(folder, "model.safetensors"))
                self.assertEqual(whole, not more)
                with self.subTest(folder=folder):
                    self.compare_loss(folder, model, ids)

    def test_narrow_files_are_read(self):
        words, model = byte_pairs(), gpt2()
        ids = words.encode(TEXT, add_special_tokens=False)
        for dtype in (torch.bfloat16, torch.float16):
            folder = self.path(str(dtype))
            model.to(dtype).save_pretrained(folder)
            words.save_pretrained(folder)
            self.compare_loss(folder, self.opened(folder).float(), ids)

    def test_greedy_text_is_the_same(self):
        words = byte_pairs()
        for make in (gpt2, llama, *FAMILIES):
            model, folder = make(), self.path(make.__name__)
            model.save_pretrained(folder)
            words.save_pretrained(folder)
            prompt = TEXT[:24]
            ids = words.encode(prompt, add_special_tokens=False)
            with torch.no_grad():
                for _ in range(40):
                    logits = model(torch.tensor([ids])).logits[0, -1, :len(words)]
                    ids.append(int(logits.argmax()))
            made = subprocess.run([PROGRAM, "generate", "--checkpoint", folder, "--prompt", prompt,
                                   "--tokens", "40", "--temperature", "0"], capture_output=True,
                                  check=True).stdout
            # Bytes that are no UTF-8 come out as they are.
            table = {c: b for b, c in tokenizers_bytes().items()}
            pieces = words.convert_ids_to_tokens(ids)
            expected = b"".join(
                piece.encode() if piece == "<|endoftext|>" else bytes(table[c] for c in piece)
                for piece in pieces)
            self.assertEqual(made, expected + b"\n")

    def test_training_begins_where_transformers_ended(self):
        for make in (gpt2, *FAMILIES):
            with self.subTest(family=make.__name__):
                self.train_from(make)

    def train_from(self, make):
        model = make()
        folder, run = self.path("hf" + make.__name__), self.path("run" + make.__name__)
        words = byte_pairs()
        model.save_pretrained(folder)
        words.save_pretrained(folder)
        flashlab("train", "--init", folder, "--text", self.text, "--steps", "5", "--batch", "2",
                 "--learning-rate", "1e-3", "--warmup-steps", "0", "--threads", "2",
                 "--evaluate-every", "0", "--output", run)
        with open(os.path.join(run, "log.jsonl"), encoding="utf-8") as file:
            first = json.loads(file.readline())["loss"]
        mean = self.scored(folder, "--text", self.text)["loss"]
        self.assertAlmostEqual(first, mean, delta=0.25 * mean)
        step = os.path.join(run, "step-5")
        after = self.opened(step)
        ids = words.encode(TEXT, add_special_tokens=False)
        self.compare_loss(run, after, ids)
        self.assertLess(self.scored(run, "--text", self.text)["loss"], mean)
        # AutoTokenizer gives every qwen2 that model's own words, whatever the folder says.
        kind = (transformers.PreTrainedTokenizerFast if make is qwen2 else
                transformers.AutoTokenizer)
        self.assertEqual(kind.from_pretrained(step).encode(TEXT), ids)

    def test_checkpoints_and_exports_open_in_transformers(self):
        for kind in ("byte", "character", "bpe"):
            for family in ("gpt2", "tiny"):
                with self.subTest(kind=kind, family=family):
                    run = self.path(kind + family)
                    more = ["--vocabulary", "280"] if kind == "bpe" else []
                    flashlab("train", "--size", family, *TINY, "--text", self.text, "--tokenizer",
                             kind, *more, "--output", run)
                    folder = os.path.join(run, "step-3")
                    if family == "tiny":
                        folder = self.path("llama" + kind)
                        flashlab("export", "--checkpoint", run, "--output", folder)
                    words = transformers.AutoTokenizer.from_pretrained(folder)
                    ids = words.encode(TEXT, add_special_tokens=False)
                    self.assertEqual(words.decode(ids), TEXT)
                    model = self.opened(folder)
                    nats, count = loss_by_windows(model, ids, 32, 32)
                    ours = self.scored(run, "--text", self.text)
                    self.assertEqual(ours["tokens"], count)
                    self.assertAlmostEqual(ours["loss"], nats / count, delta=1e-6)

    def test_llmcs_file(self):
        """Written by the format's own rule, from PyTorch's tensors."""
        model, file = gpt2(), self.path("m.bin")
        rows = 384
        header = [20240326, 3, CONTEXT, VOCABULARY, 2, 4, 64, rows]
        w = {name.removeprefix("transformer."): tensor for name, tensor in
             model.state_dict().items()}
        data = struct.pack("<256i", *header, *[0] * 248)
        table = torch.zeros(rows, 64)
        table[:VOCABULARY] = w["wte.weight"]
        tensors = [table, w["wpe.weight"]]
        for name in ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias",
                     "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight", "ln_2.bias",
                     "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight", "mlp.c_proj.bias"):
            for layer in range(2):
                tensor = w[f"h.{layer}.{name}"]
                tensors.append(tensor.t() if name.startswith(("attn", "mlp")) and tensor.ndim == 2
                               else tensor)
        tensors += [w["ln_f.weight"], w["ln_f.bias"]]
        data += b"".join(t.contiguous().numpy().astype("<f4").tobytes() for t in tensors)
        with open(file, "wb") as out:
            out.write(data)
        words = byte_pairs()
        words.save_pretrained(self.path("words"))
        ours = self.scored(file, "--tokenizer", self.path("words/tokenizer.json"), "--text",
                           self.text)
        nats, count = loss_by_windows(model, words.encode(TEXT, add_special_tokens=False), CONTEXT,
                                      CONTEXT)
        self.assertAlmostEqual(ours["loss"], nats / count, delta=1e-6)
        # And back: the same bytes.
        flashlab("export", "--checkpoint", file, "--to", "llm.c", "--output", self.path("n.bin"))
        with open(self.path("n.bin"), "rb") as again:
            self.assertEqual(again.read(), data)

    def test_choices_as_the_harness_scores_them(self):
        def preprocess(text):
            text = text.strip().replace(" [title]", ". ")
            text = re.sub(r"\[.*?\]", "", text)
            return text.replace("  ", " ")

        generator = torch.Generator().manual_seed(5)
        words = TEXT.split()

        def phrase(least, most):
            count = int(torch.randint(least, most, (), generator=generator))
            picks = torch.randint(0, len(words), (count,), generator=generator)
            return " ".join(words[int(i)] for i in picks)

        items = [{"activity_label": phrase(1, 3) + (" [header]" if i % 3 == 0 else ""),
                  "ctx_a": phrase(2, 30) + (" [title] Then" if i % 4 == 0 else ""),
                  "ctx_b": phrase(1, 4), "endings": [phrase(1, 9) for _ in range(4)],
                  "label": str(i * 7 % 4)} for i in range(60)]
        with open(self.path("c.jsonl"), "w", encoding="utf-8") as file:
            for item in items:
                file.write(json.dumps(item) + "\n")
        model, tokens, folder = gpt2(), byte_pairs(), self.path("hf")
        model.save_pretrained(folder)
        tokens.save_pretrained(folder)
        right = [0, 0]
        for item in items:
            context = preprocess(item["activity_label"] + ": " + item["ctx_a"] + " " +
                                 item["ctx_b"].capitalize())
            choices = [preprocess(ending) for ending in item["endings"]]
            begin = len(tokens.encode(context, add_special_tokens=False))
            sums = []
            for choice in choices:
                whole = tokens.encode(context + " " + choice, add_special_tokens=False)
                count = len(whole) - begin
                row = torch.tensor([whole[-(CONTEXT + 1):]])
                with torch.no_grad():
                    logp = torch.log_softmax(model(row[:, :-1]).logits[0].double(), -1)
                sums.append(logp[-count:].gather(1, row[0, -count:, None]).sum().item())
            normal = [s / len(c) for s, c in zip(sums, choices)]
            for i, scores in enumerate((sums, normal)):
                right[i] += max(range(4), key=scores.__getitem__) == int(item["label"])
        ours = self.scored(folder, "--choices", self.path("c.jsonl"))
        self.assertEqual(ours["questions"], 60)
        self.assertAlmostEqual(ours["accuracy"], right[0] / 60, delta=1e-12)
        self.assertAlmostEqual(ours["accuracy_by_characters"], right[1] / 60, delta=1e-12)
        self.assertFalse(math.isnan(ours["accuracy"]))


def tokenizers_bytes():
    """GPT-2's table: the character that stands for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(hidden)}}


if __name__ == "__main__":
    unittest.main()
