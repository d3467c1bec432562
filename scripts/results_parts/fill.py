def fill_files(*a): return 0
def check(*a): return 0
