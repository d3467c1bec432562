// What models keep in the memory of a GPU: matrices, maps of latents and codebooks as its kernels
// read them.
//
// Every resident has a place among those of the CPU too, under the same number, for verbs that have
// no kernel and run there. That place is address space: a matrix is copied to it when such a verb
// asks for it (HoldOnHost), stays there if it is small, and is given back behind the verb if it is
// large. Tables of words and positions stay where the host has them, mostly in a mapped file; words
// that are tied to a matrix are rows of it and lie on the GPU alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "cpu/kernels/residents/cpu_residents.h"
#include "cuda/memory/cuda_device.h"
#include "machine/residents.h"

namespace kvlathe {

// W [n_out, n_in] on the GPU, row after row. With dense types a row is n_in numbers, Bf16 or float,
// with blocks it is whole blocks as ggml stores them. Rows begin at multiples of 16 bytes,
// row_bytes apart; what lies behind a row is zero.
struct CudaMatrix {
  WeightType type = WeightType::kBf16;
  int64_t n_out = 0, n_in = 0;
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;
};

// A LatentMap (format/latent_map.h) on the GPU.
struct CudaLatentMap {
  int rank = 0;
  int head_dim = 0;                    // of all keys that one row of latents becomes
  int key_dim = 0;                     // of each of these keys, which turn alike
  DType row_type = DType::kBf16;       // of columns
  const std::byte* columns = nullptr;  // of the way back: [head_dim][rank] row_type, no padding
  const float* offset = nullptr;       // [head_dim], added to every key before it turns
};

// The codebooks of a layer (format/codebook/codebook.h). They are small: a launch function takes
// them from here by value, or kernels read them on the GPU.
struct CudaCodebooks {
  Codebook k, v;                    // on the host
  const Codebook* books = nullptr;  // [2] on the GPU: k, v
  // By KV head, on the GPU: [2][rank_k] floats, ranges and then offsets of the channels of K.
  std::vector<const float*> key_scales;
};

class CudaResidents : public Residents {
 public:
  // Matrices up to this size stay on the host once a verb has asked for them there.
  static constexpr int64_t kMostHeldBytes = int64_t{4} << 20;

  // Both outlive the residents. Nothing else adds to those of the host.
  CudaResidents(CudaDevice* memory, CpuResidents* host) : memory_(*memory), host_(*host) {}
  ~CudaResidents() override;
  CudaResidents(const CudaResidents&) = delete;
  CudaResidents& operator=(const CudaResidents&) = delete;

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

  // Null for none.
  const CudaMatrix* At(const WeightId& weight) const;
  // Null for none. Its rows are read on the host.
  const HostTable* At(const TableId& table) const { return host_.At(table); }
  // Null for none, and where the GPU had no memory for it: then the CPU has to compute.
  const CudaLatentMap* At(const LatentMapId& map) const;
  const CudaCodebooks* At(const CodebooksId& codebooks) const;

  // Makes a matrix readable among the residents of the host until ReleaseHost. Waits for the GPU
  // where it was not. Nothing for no matrix.
  void HoldOnHost(const WeightId& weight);
  // Gives back what HoldOnHost copied, but for small matrices.
  void ReleaseHost();

 private:
  struct Placed {
    CudaMatrix matrix;
    uint32_t region = 0;
    bool is_on_host = false;
  };
  struct PlacedMap {
    CudaLatentMap map;
    uint32_t region = 0;
  };
  struct PlacedBooks {
    CudaCodebooks books;
    uint32_t region = 0;
  };
  Placed& Of(const WeightId& weight);
  void Write(Placed* placed, int64_t first_out, int64_t n_rows, std::span<const std::byte> rows);
  std::vector<std::byte> Read(const Placed& placed, int64_t first_out, int64_t n_rows) const;

  CudaDevice& memory_;
  CpuResidents& host_;
  mutable std::mutex mutex_;  // of the memory while rows are written and read by several threads
  std::map<uint32_t, Placed> weights_;
  std::map<uint32_t, PlacedMap> maps_;
  std::map<uint32_t, PlacedBooks> codebooks_;
  std::vector<WeightId> released_later_;
};

}  // namespace kvlathe
