"""train --init, generate, evaluate and export on folders of Hugging Face, by the program alone."""

import json
import math
import os
import struct

import cli_harness
from cli_harness import Folder, run

GPT2 = ["--size", "gpt2", "--layers", "1", "--width", "16", "--heads", "2", "--hidden", "64",
        "--context", "16", "--batch", "2", "--threads", "2", "--evaluate-every", "0"]
TEXT = "the cat sat on the mat, and the dog lay under it.\n" * 20


def read(path):
    with open(path, "rb") as file:
        return file.read()


def tensors_of(path):
    """Names, types and shapes of a safetensors file."""
    data = read(path)
    length, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}


class Weights(Folder):
    def done(self, *arguments, code=0):
        result = run(*arguments)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return result.stdout

    def trained(self, name, *more, model=GPT2, steps="3"):
        text = self.path("text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write(TEXT)
        folder = self.path(name)
        self.done("train", *model, "--text", text, "--steps", steps, "--output", folder, *more)
        return folder, text

    def scores(self, *arguments):
        return json.loads(self.done("evaluate", *arguments, "--json", "-"))["files"]

    def test_a_checkpoint_of_gpt2s_kind_is_a_folder_of_hugging_face(self):
        run_folder, text = self.trained("run")
        step = os.path.join(run_folder, "step-3")
        config = json.loads(read(os.path.join(step, "config.json")))
        self.assertEqual(config["architectures"], ["GPT2LMHeadModel"])
        self.assertEqual((config["n_embd"], config["n_positions"], config["vocab_size"]),
                         (16, 16, len(set(TEXT))))
        self.assertEqual(json.loads(read(os.path.join(step, "tokenizer_config.json")))
                         ["tokenizer_class"], "PreTrainedTokenizerFast")
        # Without our own state it is somebody else's folder, and says the same.
        greedy = ["--prompt", "the ", "--tokens", "9", "--temperature", "0"]
        ours = self.done("generate", "--checkpoint", run_folder, *greedy)
        loss = self.scores("--checkpoint", run_folder, "--text", text)[0]
        for name in ("state.json", "optimizer.safetensors"):
            os.remove(os.path.join(step, name))
        self.assertEqual(self.done("generate", "--checkpoint", step, *greedy), ours)
        self.assertEqual(self.scores("--checkpoint", step, "--text", text)[0], loss)
        self.assertEqual(loss["tokens"], len(TEXT) - 1)
        self.assertEqual(loss["bytes"], len(TEXT) - 1)
        self.assertAlmostEqual(loss["bits_per_byte"] * math.log(2), loss["loss"], 12)
        self.assertAlmostEqual(math.log(loss["perplexity"]), loss["loss"], 12)

    def test_a_run_begins_with_weights(self):
        first, text = self.trained("first")
        step = os.path.join(first, "step-3")
        for name in ("state.json", "optimizer.safetensors"):
            os.remove(os.path.join(step, name))
        second = self.path("second")
        out = self.done("train", "--init", step, "--text", text, "--steps", "1",
                        "--learning-rate", "0", "--batch", "2", "--threads", "2", "--output",
                        second, "--evaluate-every", "0")
        self.assertIn("1 layers, width 16, 2 heads, context 16", out)
        self.assertEqual(read(os.path.join(second, "step-1", "model.safetensors")),
                         read(os.path.join(step, "model.safetensors")))
        config = json.loads(read(os.path.join(second, "config.json")))
        self.assertEqual(config["init"], step)
        self.assertEqual(config["tokenizer"], os.path.join(step, "tokenizer.json"))
        # The weights are asked for once: resuming needs them no more.
        short = self.path("short")
        self.done("train", "--init", step, "--text", text, "--steps", "4", "--save-every", "2",
                  "--context", "8", "--batch", "2", "--threads", "2", "--output", short)
        self.assertEqual(tensors_of(os.path.join(short, "step-4", "model.safetensors"))
                         ["wpe.weight"], ("F32", [8, 16]))
        whole = read(os.path.join(short, "step-4", "model.safetensors"))
        os.rename(step, step + "-away")
        os.rename(os.path.join(short, "step-4"), self.path("step-4"))
        self.done("train", "--resume", short)
        self.assertEqual(read(os.path.join(short, "step-4", "model.safetensors")), whole)
        step += "-away"
        fresh = ["--text", text, "--output", self.path("none"), "--batch", "2"]
        for arguments, parts in (
                (["--init", step, "--layers", "2"], ["--layers stands beside --init"]),
                (["--init", step, "--context", "32"], ["have 16 positions"]),
                (["--init", step, "--tokenizer", "bpe"], ["learns words of its own"]),
                (["--init", step, "--tokenizer", "byte"], ["256 bytes", "at most the"]),
                (["--init", self.path("nowhere")], ["--init", "no checkpoint"])):
            with self.subTest(arguments=arguments):
                self.refused(["train", *arguments, *fresh], *parts)
                self.assertFalse(os.path.exists(self.path("none")))

    def test_export_is_read_back(self):
        course = ["--layers", "1", "--width", "16", "--heads", "2", "--hidden", "24", "--context",
                  "16", "--batch", "2", "--threads", "2", "--evaluate-every", "0"]
        folder, text = self.trained("course", model=course)
        self.assertFalse(os.path.exists(os.path.join(folder, "step-3", "config.json")))
        loss = self.scores("--checkpoint", folder, "--text", text)[0]["loss"]
        out = self.path("llama")
        self.assertIn("in fp32", self.done("export", "--checkpoint", folder, "--output", out))
        self.assertEqual(json.loads(read(os.path.join(out, "config.json")))["model_type"], "llama")
        self.assertIn("model.layers.0.self_attn.q_proj.weight",
                      tensors_of(os.path.join(out, "model.safetensors")))
        # Llama's heads hold the elements of a pair half a head apart, so sums run in another order.
        self.assertAlmostEqual(self.scores("--checkpoint", out, "--text", text)[0]["loss"], loss,
                               delta=1e-7)
        narrow = self.path("narrow")
        self.done("export", "--checkpoint", folder, "--output", narrow, "--dtype", "bf16")
        self.assertEqual({dtype for dtype, _ in
                          tensors_of(os.path.join(narrow, "model.safetensors")).values()}, {"BF16"})
        self.assertAlmostEqual(self.scores("--checkpoint", narrow, "--text", text)[0]["loss"], loss,
                               delta=0.02)
        with open(os.path.join(narrow, "config.json"), "w", encoding="utf-8") as file:
            file.write('{"model_type":')
        self.refused(["evaluate", "--checkpoint", narrow, "--text", text], "config.json", "no JSON")
        self.refused(["export", "--checkpoint", folder, "--output", out], "which holds something")
        self.refused(["export", "--checkpoint", folder], "--output PATH")
        self.refused(["export", "--checkpoint", folder, "--to", "llm.c", "--output",
                      self.path("x")], "GPT-2")
        gpt2, _ = self.trained("gpt2")
        file = self.path("m.bin")
        self.done("export", "--checkpoint", gpt2, "--to", "llm.c", "--output", file)
        tokenizer = os.path.join(gpt2, "tokenizer.json")
        self.assertEqual(
            self.scores("--checkpoint", file, "--tokenizer", tokenizer, "--text", text),
            self.scores("--checkpoint", gpt2, "--text", text))
        numbers = self.done("generate", "--checkpoint", file, "--prompt", "1 2", "--tokens", "3",
                            "--temperature", "0")
        self.assertRegex(numbers, r"^1 2 \d+ \d+ \d+ \n$")

    def test_several_files_and_shards(self):
        folder, text = self.trained("run")
        other = self.path("other.txt")
        with open(other, "w", encoding="utf-8") as file:
            file.write("the mat lay under the cat")
        one, two, both = self.scores("--checkpoint", folder, "--text", text + "," + other,
                                     "--stride", "4", "--batch", "3")
        self.assertEqual(both["tokens"], one["tokens"] + two["tokens"])
        self.assertAlmostEqual(both["loss"] * both["tokens"], one["loss"] * one["tokens"] +
                               two["loss"] * two["tokens"], 9)
        shard = os.path.join(folder, "validation.bin")
        scored = self.scores("--checkpoint", folder, "--tokens", shard)[0]
        with open(os.path.join(folder, "log.jsonl"), encoding="utf-8") as file:
            last = [json.loads(line) for line in file][-1]
        # The run looks at whole windows alone, which this text nearly is.
        self.assertAlmostEqual(scored["loss"], last["validation_loss"], delta=0.05)
        out = self.done("evaluate", "--checkpoint", folder, "--text", text)
        self.assertIn("tokens scored", out)
        self.assertIn("windows of 16 tokens, every 16", out)
        base = ["evaluate", "--checkpoint", folder]
        self.refused(base, "one of --text, --tokens and --choices")
        self.refused([*base, "--text", text, "--window", "17"], "--window")
        self.refused([*base, "--text", text, "--tokens-format", "uint16"], "has no effect")
        self.refused([*base, "--text", text, "--window", "4", "--stride", "5"], "--stride")
        self.refused([*base, "--text", self.path("absent")], "No such file")
        with open(other, "w", encoding="utf-8") as file:
            file.write("THE")
        self.refused([*base, "--text", other], "never seen this character")
        self.refused(["evaluate", "--text", text], "needs --checkpoint")

    def test_choices_are_scored(self):
        folder, _ = self.trained("run", "--tokenizer", "byte", "--learning-rate", "1e-2",
                                 "--warmup-steps", "5", steps="60")
        file = self.path("c.jsonl")
        item = {"activity_label": "on", "ctx_a": "the cat sat on", "ctx_b": "the",
                "endings": ["mat, and", "zzzzqqqq", "xq"], "label": 0}
        with open(file, "w", encoding="utf-8") as out:
            for label in (0, "0", 0, 1):
                out.write(json.dumps({**item, "label": label}) + "\n")
        scored = self.scores("--checkpoint", folder, "--choices", file)[0]
        self.assertEqual(scored["questions"], 4)
        self.assertEqual(scored["tokens"], 4 * (9 + 9 + 3))
        self.assertEqual(scored["accuracy_by_characters"], 0.75)
        self.refused(["evaluate", "--checkpoint", folder, "--choices", file, "--stride", "2"],
                     "--stride has no effect")

    def test_validation_of_its_own_and_patience(self):
        other = self.path("other.txt")
        with open(other, "w", encoding="utf-8") as file:
            file.write("the cat lay under the mat. " * 9)
        # With nothing learned no look is better than the first one.
        more = ["--validation-text", other, "--learning-rate", "0", "--evaluate-every", "2",
                "--evaluate-batches", "1", "--patience", "3", "--steps", "100", "--save-every", "5"]
        model = GPT2[:-2]
        text = self.path("text.txt")
        with open(text, "w", encoding="utf-8") as file:
            file.write(TEXT)
        folder = self.path("run")
        out = self.done("train", *model, "--text", text, "--output", folder, *more)
        self.assertIn("patience 3 looks", out)
        self.assertIn("after 8 steps", out)
        self.assertEqual(len(read(os.path.join(folder, "validation.bin"))), 1024 + 2 * 27 * 9)
        self.assertEqual(len(read(os.path.join(folder, "train.bin"))), 1024 + 2 * len(TEXT))
        # Resumed between two looks it waits as long.
        whole = read(os.path.join(folder, "step-8", "state.json"))
        os.rename(os.path.join(folder, "step-8"), self.path("away"))
        self.assertIn("after 8 steps", self.done("train", "--resume", folder))
        self.assertEqual(read(os.path.join(folder, "step-8", "state.json")), whole)
        fresh = ["--text", text, "--output", self.path("none")]
        self.refused(["train", *model, *fresh, "--validation-tokens", other], "beside text")
        self.refused(["train", *model, *fresh, "--patience", "2", "--evaluate-every", "0"],
                     "patience")
        self.refused(["train", *model, *fresh, "--validation-text", self.path("absent")],
                     "No such file")


if __name__ == "__main__":
    cli_harness.main()
