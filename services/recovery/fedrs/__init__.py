"""FedRS (Li and Zhan, KDD 2021): a restricted softmax, which holds back the logits of classes that a client has few
samples of."""
