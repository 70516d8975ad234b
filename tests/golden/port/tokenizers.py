#!/usr/bin/env python3
"""Tokenizers of the families that layers/port reads, and what Hugging Face's `tokenizers` makes of texts with them.

    python3 tests/golden/port/tokenizers.py                  # writes tokenizers.json, for tokenizer_test.cpp
    python3 tests/golden/port/tokenizers.py --folder /tmp/t  # writes a folder for each family: 1 MB of text, its tokens
    SLUICE_TOKENIZERS=/tmp/t build/release/tests/sluice_tests "[tokenizer_folder]"  # compares with these, and times

Vocabularies are trained on the text of this tree, so that a later tree gives others. Needs numpy and tokenizers (0.23.3
wrote the file). Prints the speed of `tokenizers` on one thread.
"""
import argparse
import json
import os
import pathlib
import random
import sys
import time

sys.path.pop(0)  # where this file would stand in for the package
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# -- the families: what stands in their tokenizer.json beside the vocabulary -----------------------------------
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
TAIL = r"""| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL
QWEN2 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
QWEN35 = (SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
          r"|\s+(?!\S)|\s")
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+{SHORT}?|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*{SHORT}?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KIMI = (rf"[\p{{Han}}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]*[{LOWER}&&[^\p{{Han}}]]+{SHORT}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}&&[^\p{{Han}}]]+[{LOWER}&&[^\p{{Han}}]]*{SHORT}?|\p{{N}}{{1,3}}" + TAIL)
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def split(pattern, behavior="Isolated", invert=False):
    kind, text = pattern if isinstance(pattern, tuple) else ("Regex", pattern)
    return {"type": "Split", "pattern": {kind: text}, "behavior": behavior, "invert": invert}


def then_bytes(*steps):
    return sequence("pretokenizers", *steps, BYTES)


def template(before, after=()):
    piece = lambda t: {"SpecialToken": {"id": t, "type_id": 0}}
    return {"type": "TemplateProcessing",
            "single": [*map(piece, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(piece, after)],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {t: {"id": t, "ids": [t], "tokens": [t]} for t in (*before, *after)}}


def replace(old, new):
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


PIECES = {"model": "pieces", "options": {"byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}}
FUSED = [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
FAMILIES = {
    "gpt2": {"pre": {**BYTES, "use_regex": True}},
    "opt": {"pre": {**BYTES, "use_regex": True, "add_prefix_space": True}, "post": template(["<|begin|>"])},
    "llama3": {"pre": then_bytes(split(LLAMA3)), "options": {"ignore_merges": True},
               "post": sequence("processors", BYTES, template(["<|begin|>"]))},
    "qwen2": {"normalizer": {"type": "NFC"}, "pre": then_bytes(split(QWEN2)), "post": BYTES},
    "qwen35": {"normalizer": {"type": "NFC"}, "pre": then_bytes(split(QWEN35)), "post": BYTES},
    "olmo2": {"pre": then_bytes(split(LLAMA3, "Removed", True)), "post": BYTES},
    "cl100k": {"pre": then_bytes(split(CL100K, "Removed", True))},
    "gpt_oss": {"pre": then_bytes(split(O200K))},
    "kimi": {"pre": then_bytes(split(KIMI))},
    "deepseek_v3": {"pre": then_bytes(split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK)),
                    "normalizer": sequence("normalizers"), "post": template(["<|begin|>"], ["<|end|>"])},
    "digits_each": {"pre": sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                                    {**BYTES, "use_regex": True})},
    "digits_runs": {"pre": then_bytes({"type": "Digits", "individual_digits": False})},
    "removed": {"pre": then_bytes(split(("String", "e"), "Removed"))},
    "with_next": {"pre": then_bytes(split(r"\s", "MergedWithNext"))},
    "with_previous": {"pre": then_bytes(split(r"\s", "MergedWithPrevious"))},
    "contiguous": {"pre": then_bytes(split(r"[\s\d]", "Contiguous"))},
    "inverted": {"pre": then_bytes(split(r"\p{Lu}\P{Lu}*|\x{4e00}|\S\D?", "MergedWithNext", True))},
    "line_end": {"pre": then_bytes(split(r"x$|\s+$"))},
    "empty_matches": {"pre": then_bytes(split("x*"))},
    "gemma2": {**PIECES, "normalizer": replace(" ", "▁"), "pre": split(("String", " "), "MergedWithPrevious"),
               "decoder": sequence("decoders", *FUSED), "post": template(["<|begin|>"])},
    "llama2": {**PIECES, "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
               "decoder": sequence("decoders", *FUSED, STRIP)},
    "unknown": {"model": "pieces", "options": {"unk_token": "<unk>"}, "pre": split(" ", "Removed"), "decoder": None},
    "unknown_fused": {"model": "pieces", "options": {"unk_token": "<unk>", "fuse_unk": True},
                      "decoder": sequence("decoders", replace("▁", " "), {"type": "Fuse"})},
}
# Tokens beside the model's: text, special, lstrip, rstrip, normalized.
ADDED = [("<|begin|>", 1, 0, 0, 0), ("<|end|>", 1, 0, 0, 0), ("<|end|><|end|>", 1, 0, 0, 0), ("<mask>", 1, 1, 0, 0),
         ("<pad>", 1, 0, 1, 0), ("<both>", 1, 1, 1, 1), ("<tool call>", 0, 0, 0, 0), ("   ", 0, 0, 0, 0),
         ("Café", 0, 0, 0, 1), ("é<", 0, 0, 0, 0), ("new token", 0, 0, 0, 1)]


# -- texts -----------------------------------------------------------------------------------------------------
def sources():
    files = sorted(ROOT.glob("ops/*/*.cpp")) + sorted(ROOT.glob("layers/*/*.h")) + sorted(ROOT.glob("*.md"))
    return [line for f in files for line in f.read_text().splitlines(keepends=True)]


def snippet(r, lines):
    """Some bytes of one kind."""
    pick = lambda alphabet, n: "".join(r.choice(alphabet) for _ in range(r.randint(1, n)))
    kind = r.randrange(16)
    if kind < 4: return "".join(r.choice(lines) for _ in range(3)).encode()
    if kind == 4: return (pick("的一是不了人我在有他这中大来上国和说们为子你地出道也时年", 20) + r.choice("，。！ \n")).encode()
    if kind == 5: return (pick("こんにちは世界カタカナひらがな漢字ー々〆", 9) + pick("한국어안녕하세요가각힣", 6)).encode()
    if kind == 6: return pick(["😀", "👩‍👩‍👧", "🇫🇷", "👍🏽", "❤️", "1️⃣", "🫠"], 4).encode()
    if kind == 7:
        return (pick("aeiouAEnsc", 3) + pick("\u0301\u0300\u0308\u0327\u0323\u0345", 4) + "ﬁÅΩ\u0344").encode()
    if kind == 8: return bytes(r.randrange(256) for _ in range(r.randint(1, 5)))
    if kind == 9: return pick(" \t\n\r\u00a0\u3000\u2028\u0085", 30).encode() + b" " * r.choice([0, 1, 2, 100])
    if kind == 10: return f"{r.randrange(10 ** r.randint(1, 12))} {pick('0123456789٣४Ⅷ½²', 7)} {r.random()}".encode()
    if kind == 11: return (r.choice(["", " ", "  "]) + r.choice(ADDED)[0] + r.choice(["", " ", "\n "])).encode()
    if kind == 12:
        return pick(["I'm", "we'LL", "it's", "DON'T", "'ſ", " they've", "’s", "İstanbul", "ǅ", "ß"], 4).encode()
    if kind == 13: return pick("Привет мир Ελληνικά שלום مرحبا हिन्दी ไทย ខ្មែរ ", 25).encode()
    if kind == 14:
        return "".join(chr(r.choice([r.randrange(0xd800), r.randrange(0xe000, 0x30000)])) for _ in range(5)).encode()
    return r.choice(["http://a.b/c?d=e&f", "x = {'k': [1, 2]};\r\n", "HTTPServer camelCase snake_case",
                     "---\n\n\n***"]).encode()


def mixed(size, seed, lines):
    r, parts, done = random.Random(seed), [], 0
    while done < size:
        parts.append(snippet(r, lines))
        done += len(parts[-1])
    return b"".join(parts)


# -- vocabularies ----------------------------------------------------------------------------------------------
def trained(pre, size, lines, marks=False):
    """vocab and merges."""
    t = Tokenizer(models.BPE())
    alphabet = [] if marks else pre_tokenizers.ByteLevel.alphabet()
    if pre:
        bare = json.loads(t.to_str())
        bare["pre_tokenizer"] = pre
        t = Tokenizer.from_str(json.dumps(bare))
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False,
                                                     limit_alphabet=300))
    model = json.loads(t.to_str())["model"]
    if marks:
        for name in ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]:
            model["vocab"][name] = len(model["vocab"])
    return {"vocab": model["vocab"], "merges": model["merges"]}


def tokenizer_json(family, model):
    """The tokenizer.json of a family with this vocabulary."""
    vocab, added = model["vocab"], []
    for text, special, lstrip, rstrip, normalized in ADDED:
        token = vocab.get(text, len(vocab) + len(added))
        added.append({"id": token, "content": text, "single_word": False, "lstrip": bool(lstrip),
                      "rstrip": bool(rstrip), "normalized": bool(normalized), "special": bool(special)})
    ids = {a["content"]: a["id"] for a in added}
    post = json.loads(json.dumps(family.get("post")))
    for p in post.get("processors", [post]) if post else []:
        for t in p.get("special_tokens", {}).values():
            t["ids"] = [ids[t["id"]]]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": family.get("normalizer"), "pre_tokenizer": family.get("pre"), "post_processor": post,
            "decoder": family.get("decoder", BYTES),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      **family.get("options", {}), **model}}


def write_folder(folder, lines):
    data = mixed(1 << 20, 1, lines)
    for name, family in FAMILIES.items():
        marked = family.get("model") == "pieces"
        corpus = [l.replace(" ", "▁") for l in lines] if marked else lines
        model = trained(None if marked else family["pre"], 3000, corpus, marked)
        text = data.decode(errors="replace")
        out = pathlib.Path(folder) / name
        out.mkdir(parents=True, exist_ok=True)
        (out / "tokenizer.json").write_text(json.dumps(tokenizer_json(family, model), ensure_ascii=False))
        t = Tokenizer.from_file(str(out / "tokenizer.json"))
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            ids = t.encode(text).ids
            seconds.append(time.perf_counter() - start)
        (out / "text").write_bytes(data)
        np.array(ids, np.int32).tofile(out / "ids")
        (out / "decoded").write_bytes(t.decode(ids, skip_special_tokens=False).encode())
        print(f"{name:16} {len(ids):8} tokens  {len(data) / 1e6 / min(seconds):6.2f} MB/s", flush=True)


def write_cases(lines):
    r = random.Random(2)
    small = r.sample(lines, 3000) + [mixed(60000, 3, lines).decode(errors="ignore")]
    models_ = {"bytes": trained(BYTES, 900, small),
               "pieces": trained(None, 700, [l.replace(" ", "▁") for l in small], True)}
    for word in ("Hello", "Ġworld", "zq"):  # tokens that no merges make
        models_["bytes"]["vocab"].setdefault(word, len(models_["bytes"]["vocab"]))
    # Merges that show where a word ends.
    for pair in (["t", "'"], ["t'", "s"], ["'", "Å"], ["¿", "Q"], ["x", "Ċ"], ["a", "x"]):
        models_["bytes"]["vocab"].setdefault("".join(pair), len(models_["bytes"]["vocab"]))
        models_["bytes"]["merges"] += [pair] * (pair not in models_["bytes"]["merges"])
    texts = ["", " ", "a", "<pad>     x", "Hello world zq", "it's t's", "x'ſQ",
             "각\u11a8 가\u11a8 \u1100\u1161\u11a8\u11a8 가\u11a7", "we'ſ x'LL it'ſs I'S x'\u212a",
             "ax\nxb  \nc x \n\nx", " <mask>  x<pad>  y <both> z", "<|end|><|end|><|end|>",
             "a Cafe\u0301 b Café é<", "e\u0301<"]
    texts += [mixed(60, seed, lines).decode(errors="replace")[:90] for seed in range(100, 124)]
    cases = []
    for name, family in FAMILIES.items():
        whole = tokenizer_json(family, models_[family.get("model", "bytes")])
        t = Tokenizer.from_str(json.dumps(whole))
        ids = [t.encode(x).ids for x in texts]
        t.encode_special_tokens = True
        plain = [t.encode(x, add_special_tokens=False).ids for x in texts[:8]]
        drawn = [[r.randrange(t.get_vocab_size() + 3) for _ in range(12)] for _ in range(12)]
        if "pieces" in family.values():
            for _ in range(6):  # some rows of bytes end within a character
                some = r.choice(["é中", "中"]).encode()[:r.randint(2, 5)]
                drawn.append([t.token_to_id(f"<0x{b:02X}>") for b in some])
        cases.append({"name": name, "model": family.get("model", "bytes"),
                      "options": {k: v for k, v in whole.pop("model").items() if k not in ("vocab", "merges")},
                      "tokenizer": whole, "size": t.get_vocab_size(), "ids": ids, "plain": plain,
                      "decoded": [t.decode(i, skip_special_tokens=False) for i in ids], "drawn": drawn,
                      "drawn_text": [t.decode(i, skip_special_tokens=False) for i in drawn],
                      "drawn_skipping": [t.decode(i, skip_special_tokens=True) for i in drawn]})
        cases[-1]["decoded"] = [None if d == x else d for d, x in zip(cases[-1]["decoded"], texts)]
    models_["pieces"]["merges"] = [" ".join(m) for m in models_["pieces"]["merges"]]  # the older spelling
    r = random.Random(4)
    some = lambda: r.choice([65, 0xc3, 0xe0, 0xed, 0xf0, 0xf4, 0x80, 0x9f, 0xa0, r.randrange(256)])
    raw = [bytes(some() for _ in range(12)) for _ in range(40)]
    broken = [{"hex": b.hex(), "text": b.decode(errors="replace")} for b in raw]
    dump = lambda x: json.dumps(x, ensure_ascii=False, separators=(",", ":"))
    (HERE / "tokenizers.json").write_text(
        f'{{"models":{dump(models_)},\n"texts":{dump(texts)},\n"broken":{dump(broken)},\n"cases":[\n'
        + ",\n".join(map(dump, cases)) + "]}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder")
    folder = parser.parse_args().folder
    write_folder(folder, sources()) if folder else write_cases(sources())
