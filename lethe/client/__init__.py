"""The Python client: `from lethe import Client, AsyncClient`.

It speaks in the messages of `services.wire.v1` and needs neither torch nor anything of the coordinator's installation.
`asynchronous` is written by hand, `synchronous` is made from it.
"""
