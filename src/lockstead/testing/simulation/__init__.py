"""Clients of lockstead in virtual time, on a network that loses, delays and repeats messages; replayable from a seed.

A `History` puts that network between engines and a server; its `Monitor` compares, after every step, the clients'
state with the server's. `simulate` does so for any store.
"""
