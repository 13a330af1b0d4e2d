"""MOON (Li, He and Song, CVPR 2021): a client's representation is drawn to the global model's and away from that of its
own previous model."""
