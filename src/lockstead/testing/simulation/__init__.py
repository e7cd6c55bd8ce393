"""Clients of lockstead in virtual time, on a network that loses, delays and repeats; a seed decides everything.

A `History` puts that network between engines and a server; its `Monitor` compares, after every step, what clients
believe with what the server has. `simulate` does so for any store.
"""
