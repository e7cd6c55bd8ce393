"""Redlock: a store made of several independent stores."""
