"""The client without asyncio, made from `lethe.client.asynchronous` by `scripts/make-synchronous`."""
