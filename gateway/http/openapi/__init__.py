"""Every path of the ports, described for `/docs` and `/openapi.json`."""
