"""The smallest model whose operations tests work out by hand."""

TINY = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": 4,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "vocab_size": 16,
}
