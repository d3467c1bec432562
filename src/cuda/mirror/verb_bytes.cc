#include "cuda/mirror/verb_bytes.h"

#include <algorithm>

#include "base/check.h"

namespace kvlathe {

Range VerbBytes::RangeOf(const ObjectPlace& place, int64_t n_bytes) {
  const uint32_t region = place.object.region;
  const int64_t from = place.object.offset() + place.offset;
  KVL_CHECK_LE(from + n_bytes, memory_.BytesOf(region));
  if (regions_.empty() || regions_.back() != region) regions_.push_back(region);
  const int64_t begin = memory_.OffsetOf(region) + from;
  return {begin, begin + n_bytes};
}

void VerbBytes::Reads(const ObjectPlace& place, int64_t n_bytes) {
  if (place.is_null() || n_bytes <= 0) return;
  read_.push_back(RangeOf(place, n_bytes));
}

void VerbBytes::Writes(const ObjectPlace& place, int64_t n_bytes) {
  if (place.is_null() || n_bytes <= 0) return;
  written_.push_back(RangeOf(place, n_bytes));
}

void VerbBytes::Changes(const ObjectPlace& place, int64_t n_bytes) {
  Reads(place, n_bytes);
  Writes(place, n_bytes);
}

void VerbBytes::ReadsToEnd(const ObjectPlace& place) {
  if (place.is_null()) return;
  Reads(place, memory_.BytesOf(place.object.region) - place.object.offset() - place.offset);
}

void VerbBytes::WritesRows(const ObjectPlace& first, const Rows& rows) {
  if (rows.is_dense()) {
    Writes(first, rows.n_bytes());
  } else {
    Changes(first, rows.n_bytes());
  }
}

const CudaMatrix* VerbBytes::Uses(const WeightId& weight) {
  if (weight.is_null()) return nullptr;
  weights_.push_back(weight);
  return residents_.At(weight);
}

std::vector<Range> VerbBytes::Joined(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

}  // namespace kvlathe
