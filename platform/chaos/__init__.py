"""Faults on purpose, where replicas and gateways meet the network, and scenarios that use them."""
