#!/usr/bin/env python3
"""Whether transformers computes the same bits in f32 from models as draw_models.py made them, and as save_model_files()
wrote them again.

    python3 tests/golden/models/check_saved.py MADE SAVED

A model that transformers cannot run, as it was made, is counted: its products of experts refuse some sizes.
"""
import os
import sys

import safetensors.torch
import torch
import transformers


def logits(folder, tokens):
    """And the names that the files lack, or have beside those of the model."""
    kind = transformers.AutoConfig.from_pretrained(folder).model_type
    vision = kind in ("glm5_next", "glm4v", "glm4v_moe")  # no class for their text alone
    any_model = transformers.AutoModelForImageTextToText if vision else transformers.AutoModelForCausalLM
    model, names = any_model.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    with torch.no_grad():
        for x in model.parameters():
            x.data = x.data.clone()  # else the file's memory, whose alignment changes how products are rounded
        return model.eval()(tokens, use_cache=False).logits, set(names["missing_keys"]) | set(names["unexpected_keys"])


def main(made, saved):
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    same, refused, differ = 0, 0, []
    for name in sorted(os.listdir(saved)):
        tokens = safetensors.torch.load_file(f"{made}/{name}/expected.safetensors")["stream"].long()
        try:
            want, _ = logits(f"{made}/{name}", tokens)
        except (RuntimeError, ValueError):
            refused += 1
            continue
        got, wrong_names = logits(f"{saved}/{name}", tokens)
        if torch.equal(got, want) and not wrong_names:
            same += 1
        else:
            differ.append(name)
    print(f"{same} the same, {refused} refused by transformers as they were made, {len(differ)} differ: {differ}")
    return 1 if differ else 0


sys.exit(main(*sys.argv[1:]))
