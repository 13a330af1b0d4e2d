"""The HTTP API, version 1: who may do what, JSON in and out, and every error as a problem document."""
