"""The three drivers of the one core: threads, asyncio and simulation."""
