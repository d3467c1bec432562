#include "cpu/kernels/residents/cpu_residents.h"

#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace kvlathe {

CpuResidents::~CpuResidents() {
  for (const auto& [number, placed] : weights_) memory_->Free(placed.region);
}

bool CpuResidents::Multiplies(WeightType weights, DType rows) const {
  return FormatOf(weights).Multiplies(rows);
}

StatusOr<WeightId> CpuResidents::AddWeight(int64_t n_out, int64_t n_in, WeightType type) {
  const int64_t n_bytes = PackedMatrix::BytesFor(n_out, n_in, type);
  const uint32_t region = memory_->Allocate(n_bytes);
  if (region == 0) {
    return Error(StatusCode::kResourceExhausted,
                 "no memory for a weight matrix ({}); free some, or ask for less",
                 FormatBytes(n_bytes));
  }
  const CpuAccess access(*memory_);
  std::byte* const memory = access.At(ObjectId{.region = region});
  weights_.emplace(++last_number_,
                   PlacedMatrix{region, PackedMatrix::In(memory, n_out, n_in, type)});
  return WeightId{last_number_};
}

void CpuResidents::WriteRows(const WeightId& weight, int64_t first_out, int64_t n_rows, DType dtype,
                             const void* rows, int64_t row_stride) {
  const CpuAccess access(*memory_);
  weights_.find(weight.number)->second.matrix.PackRows(first_out, n_rows, dtype, rows, row_stride);
}

void CpuResidents::WriteBlocks(const WeightId& weight, int64_t first_out, int64_t n_rows,
                               const std::byte* blocks, int64_t row_bytes) {
  const CpuAccess access(*memory_);
  weights_.find(weight.number)->second.matrix.PackBlocks({first_out, n_rows, blocks, row_bytes});
}

void CpuResidents::ReadRows(const WeightId& weight, int64_t first_out, int64_t n_rows,
                            float* rows) {
  const CpuAccess access(*memory_);
  At(weight)->UnpackRows(first_out, n_rows, rows);
}

int64_t CpuResidents::BytesOf(const WeightId& weight) const { return At(weight)->n_bytes(); }

void CpuResidents::Clear(const WeightId& weight) {
  const auto found = weights_.find(weight.number);
  KVL_CHECK(found != weights_.end());
  const int64_t page = memory_->page_bytes();
  memory_->Discard(found->second.region, 0, RoundUp(found->second.matrix.n_bytes(), page));
}

void CpuResidents::Remove(const WeightId& weight) {
  const auto found = weights_.find(weight.number);
  KVL_CHECK(found != weights_.end());
  memory_->Free(found->second.region);
  weights_.erase(found);
}

StatusOr<TableId> CpuResidents::AddTable(HostTable table) {
  tables_.emplace(++last_number_, std::move(table));
  return TableId{last_number_};
}

void CpuResidents::Remove(const TableId& table) { KVL_CHECK_EQ(tables_.erase(table.number), 1u); }

LatentMapId CpuResidents::AddLatentMap(LatentMap map) {
  maps_.emplace(++last_number_, std::move(map));
  return {last_number_};
}

void CpuResidents::Remove(const LatentMapId& map) { KVL_CHECK_EQ(maps_.erase(map.number), 1u); }

CodebooksId CpuResidents::AddCodebooks(LayerCodebooks codebooks) {
  codebooks_.emplace(++last_number_, std::move(codebooks));
  return {last_number_};
}

void CpuResidents::Remove(const CodebooksId& codebooks) {
  KVL_CHECK_EQ(codebooks_.erase(codebooks.number), 1u);
}

const PackedMatrix* CpuResidents::At(const WeightId& weight) const {
  if (weight.is_null()) return nullptr;
  const auto found = weights_.find(weight.number);
  KVL_CHECK(found != weights_.end());
  return &found->second.matrix;
}

const HostTable* CpuResidents::At(const TableId& table) const {
  if (table.is_null()) return nullptr;
  const auto found = tables_.find(table.number);
  KVL_CHECK(found != tables_.end());
  return &found->second;
}

LatentMapView CpuResidents::At(const LatentMapId& map) const {
  if (map.is_null()) return {};
  const auto found = maps_.find(map.number);
  KVL_CHECK(found != maps_.end());
  return found->second.view();
}

const LayerCodebooks* CpuResidents::At(const CodebooksId& codebooks) const {
  if (codebooks.is_null()) return nullptr;
  const auto found = codebooks_.find(codebooks.number);
  KVL_CHECK(found != codebooks_.end());
  return &found->second;
}

}  // namespace kvlathe
