"""Who may ask, and how: configuration, API keys, TLS, salts of tenants."""
