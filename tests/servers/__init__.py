"""Real servers for tests and benchmarks: started here, on free ports, and gone with the process that started them."""
