"""Contrastive training for samples that are related: captioned, labelled, graded, in a taxonomy."""

__version__ = "0.1.0"
