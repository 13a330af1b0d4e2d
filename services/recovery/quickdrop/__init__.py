"""QuickDrop (Dhasade et al., 2023): clients recover with a small set of samples, distilled from their own so that it
has the same gradients."""
