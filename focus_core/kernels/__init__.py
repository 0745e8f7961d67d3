"""Mathematics of tensors: one folder an operation, with its plain reference beside every fast path."""
