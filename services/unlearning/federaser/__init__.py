"""FedEraser (Liu et al., IWQoS 2021): rebuild the model from stored updates, turned by short calibration training."""
