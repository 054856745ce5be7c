"""Certificates, tokens and TLS: which process may call which."""
