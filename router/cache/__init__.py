"""Which replica has which blocks of KV, and when it pays to fetch them."""
