// A WeightReader reads checked weights out of a source, whatever their layout there.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/threads.h"
#include "machine/residents.h"
#include "model/number_types.h"
#include "model/stored/weight_names.h"
#include "model/tensor_source.h"

namespace kvlathe {

// kDataLoss names the tensor that is missing, has another shape or is not finite. Source pages are
// released once read.
class WeightReader {
 public:
  explicit WeightReader(std::unique_ptr<TensorSource> source) : source_(std::move(source)) {}

  const TensorSource& source() const { return *source_; }
  void DoneWithAll() { source_->DoneWithAll(); }

  // All numbers of a tensor of this shape.
  StatusOr<std::vector<float>> Numbers(const std::string& name, const std::vector<int64_t>& shape);
  // A vector of n floats.
  StatusOr<std::vector<float>> Vector(const std::string& name, int64_t n) {
    return Numbers(name, {n});
  }
  // The same of a vector that some files store as a matrix of one row.
  StatusOr<std::vector<float>> VectorOrRow(const std::string& name, int64_t n);
  // The numbers wanted of some vectors, one part behind the other.
  StatusOr<std::vector<float>> Vector(const std::vector<VectorPart>& parts);
  // A number of its own, which files have as a scalar or as a vector of one.
  StatusOr<float> Number(const std::string& name);
  // The bias of a projection's channels.
  StatusOr<std::vector<float>> Bias(const Projection& projection);
  // Its matrix, [n_out, n_columns] row-major.
  StatusOr<std::vector<float>> Matrix(const Projection& projection);
  // Parts below each other from row 0 of a new matrix among `residents` on, of the type that
  // TypeOf names.
  StatusOr<Weight> Pack(const std::vector<Projection>& parts, const NumberTypes& types,
                        Residents* residents, ThreadPool* pool);
  // The type of such a matrix: that of the blocks of all parts where `types` keeps blocks; kQ8_0
  // where they differ; else types.weights, or what fits the inputs.
  WeightType TypeOf(const std::vector<Projection>& parts, const NumberTypes& types) const;
  // What came of stored blocks that were not kept, by what they were and became.
  struct Remade {
    GgmlType from;
    WeightType to;
    int64_t n_matrices = 0;
    int64_t stored_bytes = 0;
    int64_t bytes = 0;
  };
  const std::vector<Remade>& remade() const { return remade_; }
  // A stored [n_rows, n_columns] table, of which the wanted rows stay readable as long as the
  // reader lives.
  StatusOr<StoredTensor> Table(const std::string& name, int64_t n_rows, int64_t n_columns,
                               Range wanted);

  // Calls fn(first_row, n_rows, rows) for all rows of a projection's matrix, as floats, at most 64
  // at a time, on the workers; first_row is a multiple of 64.
  template <typename F>
  Status ForRowGroups(const Projection& projection, ThreadPool* pool, const F& fn) {
    KVL_ASSIGN_OR_RETURN(const StoredTensor tensor, Open(projection, pool));
    pool->Run([&](int worker_id) {
      const Range rows = ShareOf(projection.n_out(), 64, worker_id, pool->n_workers());
      std::vector<float> values(rows.begin == rows.end ? 0 : 64 * projection.n_columns());
      for (int64_t first = rows.begin; first < rows.end; first += 64) {
        const int64_t n = std::min<int64_t>(64, rows.end - first);
        CopyRows(tensor, projection, {first, first + n}, values.data());
        fn(first, n, values.data());
      }
    });
    source_->Done(tensor);
    return OkStatus();
  }

 private:
  StatusOr<StoredTensor> Checked(const std::string& name, const std::vector<int64_t>& shape);
  // Checks what is wanted of it, on the workers of `pool` where there is one.
  StatusOr<StoredTensor> Open(const Projection& projection, ThreadPool* pool = nullptr);
  // Rows [rows.begin, rows.end) of the projection's matrix as floats.
  static void CopyRows(const StoredTensor& tensor, const Projection& projection, Range rows,
                       float* out);
  void Count(const StoredTensor& tensor, const Projection& part, WeightType type);
  static void PackRows(const StoredTensor& tensor, const Projection& projection, Range rows,
                       int64_t first_out, Weight* matrix);

  std::unique_ptr<TensorSource> source_;
  std::vector<Remade> remade_;
};

}  // namespace kvlathe
