"""Who may call whom: certificates, tokens, TLS."""
