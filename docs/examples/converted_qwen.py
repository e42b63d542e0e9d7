"""A Qwen model of transformers with its Linear layers and norms on a mesh; give the folder of a checkpoint, or none.

Without a folder it is a small model of random weights.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from wafer_triton import convert


def qwen(folder=None):
    """Return the model in fp32."""
    if folder:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    small = Qwen2Config(
        vocab_size=97, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(small)


if __name__ == "__main__":
    plain = qwen(*sys.argv[1:]).eval()
    prompt = torch.tensor([[5, 7, 11]])
    expected = plain.generate(prompt, max_new_tokens=4, do_sample=False)
    tokens = convert(plain, mesh=4).generate(prompt, max_new_tokens=4, do_sample=False)
    assert torch.equal(tokens, expected)
    print("the same tokens on 4 x 4 cores:", tokens[0].tolist())
