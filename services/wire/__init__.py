"""The messages that cross the network, one package per API version."""
