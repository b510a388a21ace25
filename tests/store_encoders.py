"""Encoders for the tests of stores: small, deterministic, and each text by itself."""

import hashlib
import time

import torch


class Hashed:
    """A vector of 16 normal numbers per text, seeded by the text: real, and the same on every machine."""

    name = "hashed"

    def __init__(self, revision="1", seconds=0.0, width=16):
        self.revision, self.seconds, self.width = revision, seconds, width
        self.calls, self.texts = 0, []

    def __call__(self, texts):
        self.calls += 1
        self.texts += texts
        time.sleep(self.seconds)
        seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little") for text in texts]
        return torch.stack(
            [torch.randn(self.width, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        )


class Counted:
    """Any encoder, and what it was asked."""

    def __init__(self, encoder):
        self.encoder, self.name, self.revision, self.texts = encoder, encoder.name, encoder.revision, []

    def __call__(self, texts):
        self.texts += texts
        return self.encoder(texts)
