#!/usr/bin/env python3
"""Makes tests/goldens/tokenizer_*.json:  tests/goldens/make_tokenizer_goldens.py FOLDER

Small byte-level BPE tokenizers by Hugging Face's `tokenizers`, one for each way of cutting words
that src/train/data reads, and what that library makes of difficult texts. Needs `tokenizers`.
"""

import json
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"

WORDS = {
    "gpt2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama3": pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CONTRACTION + r"\p{N}{1,3}" + TAIL), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
    "qwen2": pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(CONTRACTION + r"\p{N}" + TAIL), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
}

TEXTS = [
    "", " ", "   ", "the cat's hat", "THE CAT'S HAT, we'll say; I'M I'd I'Ll", "a  b   c    ",
    "\n\n  indented\n\tcode\r\n\r\nend \n", "1 12 123 1234 12345678", "x=3.14;y+=2**10//7 # why?",
    "na\u00efve caf\u00e9 \u00c5ngstr\u00f6m",
    "\u4f60\u597d\uff0c\u4e16\u754c \u0645\u0631\u062d\u0628\u0627",
    "\u00a0non-breaking\u2003em\u3000wide", "\U0001f600 emoji \U0001f1e9\U0001f1ea!!! ...",
    "\u0967\u0968\u0969 \u2167 \u00bd digits", "it''s 'tis 's", "<|end|>two<|end|><|end|> ends<|en",
    "e\u0301 combining", "  <|end|>  ", "_under_score__ and-dash --flag",
    "the the the theatre there",
]

LEARN = ["the cat sat on the mat with the hat, and that was that.\n" * 4,
         "we'll say that they're there; it's 1234 or 12 and naïve café théâtre\n" * 3,
         "def f(x):\n    return x + 1\n\n" * 3, "你好，世界 你好\n" * 2]


def main():
    for name, words in WORDS.items():
        tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
        tokenizer.pre_tokenizer = words
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(LEARN, trainers.BpeTrainer(
            vocab_size=330, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
        with open(f"{sys.argv[1]}/tokenizer_{name}.json", "w", encoding="utf-8") as file:
            file.write(tokenizer.to_str() + "\n")
        expected = [{"text": text, "tokens": tokenizer.encode(text).ids} for text in TEXTS]
        with open(f"{sys.argv[1]}/tokenizer_{name}_texts.json", "w", encoding="utf-8") as file:
            json.dump(expected, file)
            file.write("\n")


if __name__ == "__main__":
    main()
