"""A replica that is spread over ranks: whether it can be, where each is seated, its processes."""
