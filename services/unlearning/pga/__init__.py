"""PGA (Halimi et al., 2022): the leaver climbs its own loss inside a ball around the model without it."""
