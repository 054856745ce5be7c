"""The control stream: pieces are announced, lent and given back."""
