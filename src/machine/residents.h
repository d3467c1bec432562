// What a model keeps on a machine in a form of the machine's own: packed weights, tables of
// embeddings, maps of latents, codebooks. Plans name it by ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/status.h"
#include "format/codebook/codebook.h"
#include "format/latent_map.h"
#include "machine/object_id.h"
#include "machine/weight_type.h"
#include "tensor/dtype.h"

namespace kvlathe {

// A matrix W [n_out, n_in] that rows are multiplied with.
struct WeightId {
  uint32_t number = 0;  // 0: there is none
  bool is_null() const { return number == 0; }
  friend bool operator==(const WeightId&, const WeightId&) = default;
};

// A LatentMap.
struct LatentMapId {
  uint32_t number = 0;  // 0: there is none
  bool is_null() const { return number == 0; }
  friend bool operator==(const LatentMapId&, const LatentMapId&) = default;
};

// A table of rows that are looked up, such as the embeddings of words.
struct TableId {
  uint32_t number = 0;  // 0: there is none
  bool is_null() const { return number == 0; }
  friend bool operator==(const TableId&, const TableId&) = default;
};

// The rows of such a table, [n_rows, n_dims], as the host has them: in a mapped file perhaps.
struct HostTable {
  int64_t n_rows = 0;
  int64_t n_dims = 0;
  // Writes a row as float [n_dims]. It may be called from different threads.
  std::function<void(int64_t row, float* to)> read;
};

// The codebooks of a layer.
struct CodebooksId {
  uint32_t number = 0;  // 0: there are none
  bool is_null() const { return number == 0; }
  friend bool operator==(const CodebooksId&, const CodebooksId&) = default;
};

// KeyRotation (format/codebook/codebook.h) with places for addresses.
struct KeyRotationId {
  ObjectPlace cos, sin;
  int half = 0;  // 0: nothing turns
  float way_back = 1.0f;

  KeyRotationId From(int64_t block) const {
    const int64_t step = block * kBlockSize * half * int64_t{sizeof(float)};
    return {cos + step, sin + step, half, way_back};
  }
};

// One thread adds and removes, and while it does nothing else uses the residents.
class Residents {
 public:
  virtual ~Residents() = default;

  // Whether there are products of rows of that type with such weights.
  virtual bool Multiplies(WeightType weights, DType rows) const = 0;
  // Memory for W [n_out, n_in], all zero. kResourceExhausted. Of a type with blocks, n_in is a
  // multiple of their values.
  virtual StatusOr<WeightId> AddWeight(int64_t n_out, int64_t n_in, WeightType type) = 0;
  // Writes rows [first_out, first_out + n_rows) of W from `rows` [n_rows, n_in] of dtype on the
  // host, row-major, row_stride elements apart; they are read before the call returns. Any range of
  // rows may be written, in any order, from different threads where the rows share no group of 64.
  virtual void WriteRows(const WeightId& weight, int64_t first_out, int64_t n_rows, DType dtype,
                         const void* rows, int64_t row_stride) = 0;
  // The same of a type with blocks: rows of whole blocks as ggml stores them, row_bytes apart.
  // WriteRows is for the other types.
  virtual void WriteBlocks(const WeightId& weight, int64_t first_out, int64_t n_rows,
                           const std::byte* blocks, int64_t row_bytes) = 0;
  // Rows [first_out, first_out + n_rows) of W as float [n_rows, n_in], for who goes back through
  // them. Different threads may read; groups of 64 rows from a multiple of 64 on are fastest.
  virtual void ReadRows(const WeightId& weight, int64_t first_out, int64_t n_rows, float* rows) = 0;
  virtual int64_t BytesOf(const WeightId& weight) const = 0;
  virtual void Remove(const WeightId& weight) = 0;

  // A machine may read all rows now, or each when it is looked up; `table` stays readable until the
  // table is removed. kResourceExhausted.
  virtual StatusOr<TableId> AddTable(HostTable table) = 0;
  virtual void Remove(const TableId& table) = 0;
  virtual LatentMapId AddLatentMap(LatentMap map) = 0;
  virtual void Remove(const LatentMapId& map) = 0;
  virtual CodebooksId AddCodebooks(LayerCodebooks codebooks) = 0;
  virtual void Remove(const CodebooksId& codebooks) = 0;
};

// Owns one of the residents.
template <typename Id>
class Resident {
 public:
  Resident() = default;
  Resident(Residents* residents, const Id& id) : residents_(residents), id_(id) {}
  Resident(Resident&& other) noexcept
      : residents_(other.residents_), id_(std::exchange(other.id_, {})) {}
  Resident& operator=(Resident&& other) noexcept {
    std::swap(residents_, other.residents_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~Resident() {
    if (!id_.is_null()) residents_->Remove(id_);
  }

  const Id& id() const { return id_; }

 protected:
  Residents* residents_ = nullptr;  // outlive it
  Id id_;
};

// Owns a matrix on a machine, and knows its shape. Functions as those of Residents.
class Weight : public Resident<WeightId> {
 public:
  Weight() = default;
  static StatusOr<Weight> Create(Residents* residents, int64_t n_out, int64_t n_in,
                                 WeightType type) {
    Weight weight;
    KVL_ASSIGN_OR_RETURN(weight.id_, residents->AddWeight(n_out, n_in, type));
    weight.residents_ = residents;
    weight.n_out_ = n_out;
    weight.n_in_ = n_in;
    weight.type_ = type;
    return weight;
  }

  void WriteRows(int64_t first_out, int64_t n_rows, DType dtype, const void* rows,
                 int64_t row_stride) {
    residents_->WriteRows(id_, first_out, n_rows, dtype, rows, row_stride);
  }
  void WriteBlocks(int64_t first_out, int64_t n_rows, const std::byte* blocks, int64_t row_bytes) {
    residents_->WriteBlocks(id_, first_out, n_rows, blocks, row_bytes);
  }
  void ReadRows(int64_t first_out, int64_t n_rows, float* rows) const {
    residents_->ReadRows(id_, first_out, n_rows, rows);
  }

  int64_t n_out() const { return n_out_; }
  int64_t n_in() const { return n_in_; }
  WeightType type() const { return type_; }
  int64_t n_bytes() const { return id_.is_null() ? 0 : residents_->BytesOf(id_); }

 private:
  int64_t n_out_ = 0, n_in_ = 0;
  WeightType type_ = WeightType::kBf16;
};

}  // namespace kvlathe
