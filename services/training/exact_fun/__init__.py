"""Exact-Fun (Xiong et al., ICDM 2023): a quantised global model that often does not notice that a client is gone."""
