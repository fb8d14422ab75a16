"""The plain text of each family (bench/peers/train_families.py) against transformers' classes.

`flashlab train` is compared with that text in fp64 by records (tests/goldens/parity); here the text
itself is compared, so that both agree with the library that people have.
"""

import os
import sys
import unittest

import torch_cases  # skips without PyTorch

import torch

try:
    import transformers
except ImportError as error:
    raise unittest.SkipTest("skipped: no transformers") from error

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/peers"))
import train_families  # noqa: E402  pylint: disable=wrong-import-position

SIZES = {"vocabulary": 19, "context": 12, "width": 24, "hidden": 20, "layers": 2, "heads": 4,
         "rope_theta": 10000.0, "norm_epsilon": 1e-5}
CONFIGS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3",
           "gemma2": "Gemma2"}
# What is taken away or swapped, and where it shows.
CHANGES = {"scale": CONFIGS, "pairs": CONFIGS, "heads": CONFIGS, "window": ("mistral", "gemma2"),
           "bias": ("qwen2",), "qk_norm": ("qwen3",), "one": ("gemma2",), "after": ("gemma2",),
           "gelu": ("gemma2",), "embedding": ("gemma2",), "attention_softcap": ("gemma2",),
           "logits_softcap": ("gemma2",)}


def model_of(family):
    """Sizes, with two heads of keys for four of queries so that their order shows."""
    return {**SIZES, "family": family, **train_families.SMALL[family], "key_heads": 2}


def theirs(m):
    more, rope = {}, {"rope_theta": m["rope_theta"], "rope_type": "default"}
    if "rope_scaling" in m:
        s = m["rope_scaling"]
        rope = {"rope_theta": m["rope_theta"], "rope_type": "llama3", "factor": s["factor"],
                "low_freq_factor": s["low"], "high_freq_factor": s["high"],
                "original_max_position_embeddings": s["original"]}
    if m["family"] in ("mistral", "gemma2"):
        more["sliding_window"] = m["window"]
    if m["family"] == "gemma2":
        # A padding token has no gradient of its embedding; the class's default is one of ours.
        more.update(pad_token_id=None, query_pre_attn_scalar=int(m["score_size"]),
                    attn_logit_softcapping=m["attention_softcap"],
                    final_logit_softcapping=m["logits_softcap"])
    name = CONFIGS[m["family"]]
    config = getattr(transformers, name + "Config")(
        vocab_size=m["vocabulary"], max_position_embeddings=m["context"], hidden_size=m["width"],
        intermediate_size=m["hidden"], num_hidden_layers=m["layers"],
        num_attention_heads=m["heads"], num_key_value_heads=m["key_heads"],
        head_dim=m["head_size"], rms_norm_eps=m["norm_epsilon"], rope_parameters=rope,
        tie_word_embeddings=m.get("tied", False), attn_implementation="eager", **more)
    torch.manual_seed(1)
    model = getattr(transformers, name + "ForCausalLM")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model.eval()


def ours(m, model, changed=""):
    out = train_families.Model(m, changed)
    state = model.state_dict()
    with torch.no_grad():
        for name, parameter in out.named():
            parameter.copy_(state[name])
    return out


def error_of(got, wanted):
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


class Families(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(2)
        shape = (3, SIZES["context"])
        self.tokens, self.targets = (torch.randint(SIZES["vocabulary"], shape) for _ in range(2))

    def test_logits_and_gradients_are_those_of_transformers(self):
        for family in CONFIGS:
            with self.subTest(family=family):
                model = theirs(model_of(family))
                text = ours(model_of(family), model)
                wanted = model(self.tokens).logits
                self.assertLess(error_of(text(self.tokens), wanted), 1e-5)
                torch.nn.functional.cross_entropy(
                    wanted.flatten(0, 1), self.targets.flatten()).backward()
                train_families.loss_of(text, self.tokens, self.targets).backward()
                gradients = {name: p.grad for name, p in model.named_parameters()}
                for name, parameter in text.named():
                    self.assertLess(error_of(parameter.grad, gradients.pop(name)), 1e-5, name)
                self.assertFalse(gradients)

    def test_each_rule_shows(self):
        for changed, families in CHANGES.items():
            for family in families:
                with self.subTest(changed=changed, family=family):
                    model = theirs(model_of(family))
                    text = ours(model_of(family), model, changed)
                    with torch.no_grad():
                        error = error_of(text(self.tokens), model(self.tokens).logits)
                    self.assertGreater(error, 1e-3)


if __name__ == "__main__":
    unittest.main()
