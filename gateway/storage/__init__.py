"""Storage that outlives requests: values in a folder shared by all gateways."""
