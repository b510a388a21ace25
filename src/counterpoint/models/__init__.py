"""Backbones, heads, and the encoder made of both."""
