"""Access to the gateway: configuration, API keys, TLS, salts of tenants."""
