"""How a request to forget is carried out."""
