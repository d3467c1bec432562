// The bytes of a GPU's memory that a verb reads and writes, by which it can run elsewhere.
#pragma once

#include <cstdint>
#include <vector>

#include "base/threads.h"
#include "cuda/residents/cuda_residents.h"
#include "machine/object_id.h"

namespace kvlathe {

class VerbBytes {
 public:
  // Both outlive it.
  VerbBytes(const CudaDevice& memory, const CudaResidents& residents)
      : memory_(memory), residents_(residents) {}

  // n_bytes from a place on; nothing where there is no place. Reads: none of them changes. Writes:
  // the verb writes all of them, whatever they were. Changes: it reads them, or writes some.
  void Reads(const ObjectPlace& place, int64_t n_bytes);
  void Writes(const ObjectPlace& place, int64_t n_bytes);
  void Changes(const ObjectPlace& place, int64_t n_bytes);
  void Reads(const ObjectId& id, int64_t n_bytes) { Reads(ObjectPlace{id}, n_bytes); }
  void Changes(const ObjectId& id, int64_t n_bytes) { Changes(ObjectPlace{id}, n_bytes); }
  // Reads what stands from a place to the end of its region.
  void ReadsToEnd(const ObjectPlace& place);

  // Rows that begin `stride` numbers of element_bytes apart, and use `width` of them.
  struct Rows {
    int64_t n = 0;
    int64_t stride = 0;
    int64_t width = 0;
    int64_t element_bytes = 4;

    bool is_dense() const { return stride == width || n == 1; }
    int64_t n_bytes() const { return n == 0 ? 0 : ((n - 1) * stride + width) * element_bytes; }
  };
  void ReadsRows(const ObjectPlace& first, const Rows& rows) { Reads(first, rows.n_bytes()); }
  // What lies between rows that are not dense belongs to others, and is changed as it is.
  void WritesRows(const ObjectPlace& first, const Rows& rows);

  // Uses a matrix, which is returned; null for none.
  const CudaMatrix* Uses(const WeightId& weight);

  // Ranges of bytes from the start of the memory, ascending and apart.
  std::vector<Range> read() const { return Joined(read_); }
  std::vector<Range> written() const { return Joined(written_); }
  const std::vector<uint32_t>& regions() const { return regions_; }  // some more than once
  const std::vector<WeightId>& weights() const { return weights_; }

 private:
  static std::vector<Range> Joined(std::vector<Range> ranges);
  Range RangeOf(const ObjectPlace& place, int64_t n_bytes);

  const CudaDevice& memory_;
  const CudaResidents& residents_;
  std::vector<Range> read_, written_;
  std::vector<uint32_t> regions_;
  std::vector<WeightId> weights_;
};

}  // namespace kvlathe
