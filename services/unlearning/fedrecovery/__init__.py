"""FedRecovery (Zhang et al., TIFS 2023): subtract the leaver's weighted gradient residuals and add Gaussian noise."""
