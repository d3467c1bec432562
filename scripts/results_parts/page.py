def write_pages(*a): return 0
