"""The client for asyncio. `lethe.client.synchronous` is made from these modules by `scripts/make-synchronous`."""
