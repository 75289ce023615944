"""Make a model directory without weights: a Llama of two layers, and a tokenizer trained on one sentence.

Usage, with the interpreter of the environment of vLLM: ``python make_model.py FOLDER``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 512
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16",
}
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
SENTENCE = "The service answers requests; a queue holds those for which there is no slot yet."


def main(folder: str) -> None:
    """Write the files of the model."""
    from tokenizers import (  # type: ignore[import-not-found] # only vLLM has it
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([SENTENCE], trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps(CONFIG))
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
