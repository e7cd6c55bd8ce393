"""The three runtimes of the core: threads, asyncio and simulation."""
