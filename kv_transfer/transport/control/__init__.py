"""The control stream: pieces announced, lent and given back."""
