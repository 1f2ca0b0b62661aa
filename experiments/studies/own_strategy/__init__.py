"""Does a strategy keep every promise?"""
