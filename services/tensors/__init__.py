"""Safetensors without torch: layouts, checks at the door, a deterministic codec, and the aggregation kernel."""
