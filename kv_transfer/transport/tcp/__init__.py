"""KV blocks directly from one arena to another over plain TCP, announced on the control stream."""
