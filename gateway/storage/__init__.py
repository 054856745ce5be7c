"""What outlives requests: values in a folder that all gateways share."""
