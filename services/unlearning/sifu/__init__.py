"""SIFU (Fraboni et al., AISTATS 2024): go back to the last model that the leaver had moved little, and add noise."""
