// What is asked of a prune, and what re-sealing has cost.
#pragma once

#include <cstdint>

namespace kvlathe {

// How many entries stay, at least one, and how many of them stay because they are the newest.
struct KeptEntries {
  int64_t n = 0;
  int64_t n_recent = 0;
};

// How many entries fall into each class (EntryClass).
struct ClassSizes {
  int64_t most = 0, middle = 0, least = 0;

  int64_t sum() const { return most + middle + least; }
};

// What sealing entries again has cost. Each time that an entry of any head is sealed counts, but
// for the first.
struct Reencoding {
  int64_t n_times = 0;  // prune points at which sealed entries were dropped
  int64_t n_rows = 0;
  // Squared distances of rows before and after, and squared rows, of K and of V as they are stored.
  double k_error = 0, k_norm = 0, v_error = 0, v_norm = 0;

  void Add(const Reencoding& more) {
    n_times += more.n_times;
    n_rows += more.n_rows;
    k_error += more.k_error;
    k_norm += more.k_norm;
    v_error += more.v_error;
    v_norm += more.v_norm;
  }
};

}  // namespace kvlathe
