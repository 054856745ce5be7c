"""`baton verify`: does the disaggregated engine say what the plain one says?"""
