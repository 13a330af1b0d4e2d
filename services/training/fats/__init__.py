"""FATS (Tao et al., VLDB 2024): clients are sampled so rarely that most of them can leave without a trace."""
