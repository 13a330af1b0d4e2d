"""NoT (CVPR 2025): negate the first layer's weights, then let the remaining clients train on. Public name: `not`."""
