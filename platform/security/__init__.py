"""Certificates, tokens and TLS: who may call whom."""
