// What models keep in the memory of the CPU: matrices as its kernels read them
// (cpu/kernels/linear/packed_matrix.h), maps of latents, codebooks.
#pragma once

#include <map>
#include <memory>

#include "cpu/kernels/linear/packed_matrix.h"
#include "cpu/memory/cpu_device.h"
#include "machine/residents.h"

namespace kvlathe {

class CpuResidents : public Residents {
 public:
  // `memory` outlives the residents; matrices lie in it.
  explicit CpuResidents(CpuDevice* memory) : memory_(memory) {}
  ~CpuResidents() override;
  CpuResidents(const CpuResidents&) = delete;
  CpuResidents& operator=(const CpuResidents&) = delete;

  bool Multiplies(WeightType weights, DType rows) const override;
  StatusOr<WeightId> AddWeight(int64_t n_out, int64_t n_in, WeightType type) override;
  void WriteRows(const WeightId& weight, int64_t first_out, int64_t n_rows, DType dtype,
                 const void* rows, int64_t row_stride) override;
  void WriteBlocks(const WeightId& weight, int64_t first_out, int64_t n_rows,
                   const std::byte* blocks, int64_t row_bytes) override;
  void ReadRows(const WeightId& weight, int64_t first_out, int64_t n_rows, float* rows) override;
  int64_t BytesOf(const WeightId& weight) const override;
  void Remove(const WeightId& weight) override;
  StatusOr<TableId> AddTable(HostTable table) override;
  void Remove(const TableId& table) override;
  LatentMapId AddLatentMap(LatentMap map) override;
  void Remove(const LatentMapId& map) override;
  CodebooksId AddCodebooks(LayerCodebooks codebooks) override;
  void Remove(const CodebooksId& codebooks) override;

  // Gives the pages of a matrix back, which holds zeros again.
  void Clear(const WeightId& weight);

  // Null for none. Its numbers may be read while the memory is open (CpuAccess).
  const PackedMatrix* At(const WeightId& weight) const;
  // Null for none.
  const HostTable* At(const TableId& table) const;
  // Of rank 0 for none.
  LatentMapView At(const LatentMapId& map) const;
  // Null for none.
  const LayerCodebooks* At(const CodebooksId& codebooks) const;

 private:
  struct PlacedMatrix {
    uint32_t region;
    PackedMatrix matrix;
  };
  CpuDevice* memory_;
  uint32_t last_number_ = 0;  // of all that was ever added
  std::map<uint32_t, PlacedMatrix> weights_;
  std::map<uint32_t, HostTable> tables_;  // their rows are read when they are looked up
  std::map<uint32_t, LatentMap> maps_;
  std::map<uint32_t, LayerCodebooks> codebooks_;
};

// Where kernels look up what plans name: rows of a cache in its device, everything else in the
// machine's memory.
struct CpuLookup {
  const CpuAccess& cache;
  const CpuAccess& own;
  const CpuResidents& residents;
};

}  // namespace kvlathe
