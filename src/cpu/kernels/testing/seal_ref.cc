#include "cpu/kernels/testing/seal_ref.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

namespace kvlathe {
namespace {

constexpr int kTokens = 64;  // of a block

// The rows of one head as a matrix, and what is known of each element.
struct Matrix {
  int n_tokens, rank;
  std::vector<float> x;
  std::vector<char> is_exact;
  std::vector<float> scale, min;
  std::vector<int> code;
  std::vector<float> number;  // what the scale multiplies: the code, or its centroid
  RefFactors factors;

  Matrix(const std::vector<float>& values, int matrix_rank, RefFactors stored)
      : n_tokens(static_cast<int>(values.size()) / matrix_rank),
        rank(matrix_rank),
        x(values),
        is_exact(values.size()),
        scale(values.size()),
        min(values.size()),
        code(values.size()),
        number(values.size()),
        factors(std::move(stored)) {}
  size_t at(int token, int channel) const { return static_cast<size_t>(token) * rank + channel; }
};

struct Scale {
  uint16_t scale_bits, min_bits;
};

using Elements = std::vector<std::pair<Matrix*, size_t>>;

// Codes of an element by its range and offset.
void Encode(const Codebook& codebook, float range, float offset, Matrix* m, size_t i) {
  const float quotient = (m->x[i] - offset) / range;
  int code = 0;
  while (code < codebook.n_codes - 1 && quotient > codebook.boundaries[code]) ++code;
  m->scale[i] = range;
  m->min[i] = offset;
  m->code[i] = code;
  m->number[i] = codebook.centroids[code];
}

// Range and offset of the elements `group`, and their codes.
Scale EncodeGroup(const Codebook& codebook, const Elements& group) {
  bool is_empty = true;
  float low = 0, high = 0;
  for (const auto& [m, i] : group) {
    if (m->is_exact[i]) continue;
    low = is_empty ? m->x[i] : std::min(low, m->x[i]);
    high = is_empty ? m->x[i] : std::max(high, m->x[i]);
    is_empty = false;
  }
  float middle = high / 2 + low / 2;
  if (middle == 0) middle = 0;  // not -0
  Scale result = {F16BitsRef(high / 2 - low / 2), F16BitsRef(middle)};
  if (result.scale_bits % 0x8000 == 0) result.scale_bits = 1;
  for (const auto& [m, i] : group) {
    Encode(codebook, F16ValueRef(result.scale_bits), F16ValueRef(result.min_bits), m, i);
  }
  return result;
}

// Marks the exact entries of K with ranges of the model: the n farthest out, the first of equals in
// the order of blocks, then channels, then tokens.
void MarkFarthest(const std::vector<float>& scales, double share, Matrix* k) {
  std::vector<std::pair<float, size_t>> order;
  for (int first = 0; first < k->n_tokens; first += kTokens) {
    for (int c = 0; c < k->rank; ++c) {
      for (int t = first; t < first + kTokens; ++t) {
        const size_t i = k->at(t, c);
        order.emplace_back(std::fabs((k->x[i] - scales[k->rank + c]) / scales[c]), i);
      }
    }
  }
  const auto n = static_cast<int64_t>(static_cast<double>(order.size()) * share);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (int64_t j = 0; j < std::min<int64_t>(n, std::ssize(order) / 2); ++j) {
    k->is_exact[order[j].second] = true;
  }
}

void EncodeKeys(const Codebook& codebook, const std::vector<float>& scales, Matrix* k) {
  for (int t = 0; t < k->n_tokens; ++t) {
    for (int c = 0; c < k->rank; ++c) {
      Encode(codebook, scales[c], scales[k->rank + c], k, k->at(t, c));
    }
  }
}

// The magnitude at which the row of a token is clipped: sorted, that of index floor(share * n) of
// its n elements, or the last. Infinite where all are exact entries.
float ClipOfRow(const Matrix& m, int token, double share) {
  std::vector<float> magnitudes;
  for (int c = 0; c < m.rank; ++c) {
    if (!m.is_exact[m.at(token, c)]) magnitudes.push_back(std::fabs(m.x[m.at(token, c)]));
  }
  if (magnitudes.empty()) return std::numeric_limits<float>::infinity();
  std::sort(magnitudes.begin(), magnitudes.end());
  const auto index = static_cast<size_t>(share * static_cast<double>(magnitudes.size()));
  return magnitudes[std::min(index, magnitudes.size() - 1)];
}

// Scale and minimum of the elements `group`, clipped to +-clip, and their codes.
Scale QuantiseGroup(const PackedSide& side, const Elements& group,
                    float clip = std::numeric_limits<float>::infinity()) {
  bool is_empty = true;
  float low = 0, high = 0;
  for (const auto& [m, i] : group) {
    if (m->is_exact[i]) continue;
    const float x = std::clamp(m->x[i], -clip, clip);
    low = is_empty ? x : std::min(low, x);
    high = is_empty ? x : std::max(high, x);
    is_empty = false;
  }
  if (low == 0) low = 0;  // not -0
  const int n_steps = (1 << side.bits) - 1;
  float scale = 1;
  if (side.is_symmetric) {
    if (!is_empty && side.bits == 4) scale = (high < -low ? low : high) / -8.0f;
    if (!is_empty && side.bits == 8) scale = std::max(std::fabs(low), std::fabs(high)) / 127.0f;
    low = 0;
  } else if (low != high) {
    scale = (high - low) / static_cast<float>(n_steps);
  }
  Scale result = {F16BitsRef(scale), F16BitsRef(low)};
  if (result.scale_bits % 0x8000 == 0) result.scale_bits = 1;
  const float rounded_scale = F16ValueRef(result.scale_bits);
  const bool is_signed = side.is_symmetric && side.bits == 8;
  const float rounded_min =
      side.is_symmetric && side.bits == 4 ? -8 * rounded_scale : F16ValueRef(result.min_bits);
  for (const auto& [m, i] : group) {
    const float code = std::nearbyint((m->x[i] - rounded_min) / rounded_scale);
    const float lowest = is_signed ? -127 : 0;
    const float highest = is_signed ? 127 : static_cast<float>(n_steps);
    m->scale[i] = rounded_scale;
    m->min[i] = rounded_min;
    m->code[i] = static_cast<int>(std::clamp(code, lowest, highest));
    m->number[i] = static_cast<float>(m->code[i]);
  }
  return result;
}

// The scale of the elements `group` under a table, as the specification of MX says it, in double:
// every code is tried.
Scale EncodeByTable(const CodeTable& table, const Elements& group) {
  double largest = 0, largest_number = 0;
  for (const auto& [m, i] : group) {
    if (!m->is_exact[i]) largest = std::max(largest, std::fabs(static_cast<double>(m->x[i])));
  }
  for (const int8_t number : table.numbers) {
    largest_number = std::max(largest_number, std::fabs(number * static_cast<double>(table.unit)));
  }
  int exponent = 0;
  if (largest > 0) {
    exponent =
        static_cast<int>(std::floor(std::log2(largest)) - std::floor(std::log2(largest_number)));
    exponent = std::clamp(exponent, -126, 127);
  }
  const double unit = std::ldexp(static_cast<double>(table.unit), exponent);
  for (const auto& [m, i] : group) {
    const double quotient = std::clamp(m->x[i] / unit, -256.0, 256.0);  // exact
    double nearest = std::numeric_limits<double>::infinity();
    for (int code = 0; code < kTableCodes; ++code) {
      const double distance = std::fabs(quotient - table.numbers[code]);
      const bool is_tie = distance == nearest && code % 2 == 0 && m->code[i] % 2 == 1;
      if (distance > nearest || (distance == nearest && !is_tie)) continue;
      nearest = distance;
      m->code[i] = code;
    }
    m->number[i] = table.numbers[m->code[i]];
    m->scale[i] = static_cast<float>(unit);
    m->min[i] = 0;
  }
  return {static_cast<uint16_t>(exponent + 127), 0};
}

// The scale of the elements `group` under the levels of a normal number: codes are of the levels
// nearest to what it takes on average, and then, where `corrects`, it is what gives the row its
// length. Signs are not made here.
Scale EncodeByLevels(const PackedSide& side, bool corrects, const Elements& group) {
  const int n_codes = 1 << side.bits;
  const double unit = side.table->unit, step = kNormalTables[side.bits - 1].step;
  double squares = 0;
  for (const auto& [m, i] : group) squares += static_cast<double>(m->x[i]) * m->x[i];
  uint16_t bits =
      F16BitsRef(static_cast<float>(std::sqrt(squares / std::ssize(group)) * (step / unit)));
  const float of_number = bits == 0 ? 1 : F16ValueRef(bits) * side.table->unit;
  double numbers = 0;
  for (const auto& [m, i] : group) {
    const double quotient = std::clamp(m->x[i] / of_number, -256.0f, 256.0f);
    double nearest = std::numeric_limits<double>::infinity();
    for (int code = 0; code < n_codes; ++code) {
      const double distance = std::fabs(quotient - side.table->numbers[code]);
      // Between the middle levels lies 0, and the sign decides of numbers that are hardly more.
      const bool is_tie =
          distance == nearest && code % 2 == 0 && (code != n_codes / 2 || quotient > 0);
      if (distance > nearest || (distance == nearest && !is_tie)) continue;
      nearest = distance;
      m->code[i] = code;
    }
    m->number[i] = side.table->numbers[m->code[i]];
    numbers += static_cast<double>(m->number[i]) * m->number[i];
  }
  if (corrects) bits = F16BitsRef(static_cast<float>(std::sqrt(squares / numbers) / unit));
  return {bits, 0};
}

// Marks the n largest and then the n smallest of the rest; the first of equal ones.
void MarkExact(const Elements& column, int n) {
  std::vector<int> order(column.size());
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int i) { return column[i].first->x[column[i].second]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return value(a) > value(b); });
  std::vector<int> rest(order.begin() + n, order.end());
  std::sort(rest.begin(), rest.end());
  std::stable_sort(rest.begin(), rest.end(), [&](int a, int b) { return value(a) < value(b); });
  for (int i = 0; i < n; ++i) {
    for (int j : {order[i], rest[i]}) column[j].first->is_exact[column[j].second] = true;
  }
}

template <typename T>
void Append(T value, std::vector<std::byte>* to) {
  const size_t n = to->size();
  to->resize(n + sizeof(value));
  std::memcpy(to->data() + n, &value, sizeof(value));
}

using CodeLine = std::vector<uint8_t>;  // 32 codes

void AppendGroup(const std::vector<CodeLine>& lines, int bits, std::vector<std::byte>* to) {
  if (bits == 8) {
    for (int first = 0; first < 32; first += 8) {
      for (const CodeLine& line : lines) {
        for (int w = first; w < first + 8; ++w) Append(line[w], to);
      }
    }
    return;
  }
  const bool has_high_bit = bits == 3 || bits == 5;
  const int low_bits = has_high_bit ? bits - 1 : bits;
  for (int w = 0; w < 32; ++w) {
    unsigned word = 0;
    for (size_t i = 0; i < lines.size(); ++i) {
      word |= (lines[i][w] % (1u << low_bits)) << (low_bits * i);
    }
    Append(static_cast<uint16_t>(word), to);
  }
  if (!has_high_bit) return;
  for (const CodeLine& line : lines) {
    uint32_t high = 0;
    for (int w = 0; w < 32; ++w) high |= static_cast<uint32_t>(line[w] >> low_bits) << w;
    Append(high, to);
  }
}

int LinesTogether(int bits) { return bits == 8 ? 2 : bits >= 4 ? 4 : 8; }

void AppendKeyCodes(const Matrix& k, int block, int bits, std::vector<std::byte>* to) {
  std::vector<CodeLine> lines;
  for (int pair = 0; pair < k.rank / 2; ++pair) {
    for (int first = 0; first < kTokens; first += 16) {
      CodeLine line;
      for (int t = first; t < first + 16; ++t) {
        for (int c : {2 * pair, 2 * pair + 1}) {
          line.push_back(static_cast<uint8_t>(k.code[k.at(block * kTokens + t, c)]));
        }
      }
      lines.push_back(line);
      if (static_cast<int>(lines.size()) == LinesTogether(bits)) {
        AppendGroup(lines, bits, to);
        lines.clear();
      }
    }
  }
}

void AppendValueCodes(const Matrix& v, int block, int bits, std::vector<std::byte>* to) {
  const int n_pairs = LinesTogether(bits);
  for (int first = 0; first < kTokens / 2; first += n_pairs) {
    for (int c16 = 0; c16 < v.rank; c16 += 16) {
      std::vector<CodeLine> lines;
      for (int pair = first; pair < first + n_pairs; ++pair) {
        CodeLine line;
        for (int c = c16; c < c16 + 16; ++c) {
          for (int t : {2 * pair, 2 * pair + 1}) {
            line.push_back(static_cast<uint8_t>(v.code[v.at(block * kTokens + t, c)]));
          }
        }
        lines.push_back(line);
      }
      AppendGroup(lines, bits, to);
    }
  }
}

// Scales of the tokens of one block: [groups][parts][64].
void AppendTokenScales(Matrix* m, const PackedFormat& format, const PackedSide& side, int block,
                       std::vector<std::byte>* to) {
  const auto* const sphere = std::get_if<SphereCodec>(&format.codec);
  const int group = side.group == 0 ? m->rank : side.group;
  for (int first = 0; first < m->rank; first += group) {
    std::vector<Scale> scales;
    for (int t = block * kTokens; t < (block + 1) * kTokens; ++t) {
      Elements elements;
      for (int c = first; c < std::min(first + group, m->rank); ++c) {
        elements.push_back({m, m->at(t, c)});
      }
      if (sphere != nullptr) {
        scales.push_back(EncodeByLevels(side, sphere->corrects_norms, elements));
      } else {
        scales.push_back(side.table != nullptr
                             ? EncodeByTable(*side.table, elements)
                             : QuantiseGroup(side, elements, ClipOfRow(*m, t, side.clip)));
      }
    }
    for (const Scale& s : scales) {
      if (side.table != nullptr && sphere == nullptr) {
        Append(static_cast<uint8_t>(s.scale_bits), to);
      } else {
        Append(s.scale_bits, to);
      }
    }
    if (side.is_symmetric) continue;
    for (const Scale& s : scales) Append(s.min_bits, to);
  }
}

// Scales of the channels of a run: [groups][2][rank].
void AppendChannelScales(Matrix* m, const PackedSide& side, std::vector<std::byte>* to) {
  const int group = side.group == 0 ? m->n_tokens : side.group;
  for (int first = 0; first < m->n_tokens; first += group) {
    std::vector<Scale> scales;
    for (int c = 0; c < m->rank; ++c) {
      Elements elements;
      for (int t = first; t < std::min(first + group, m->n_tokens); ++t) {
        elements.push_back({m, m->at(t, c)});
      }
      scales.push_back(QuantiseGroup(side, elements));
    }
    for (const Scale& s : scales) Append(s.scale_bits, to);
    for (const Scale& s : scales) Append(s.min_bits, to);
  }
}

// What the code of an element loses.
float LossOf(const Matrix& m, size_t i) {
  const float value = m.number[i] * m.scale[i];
  return m.x[i] - (value + m.min[i]);
}

std::vector<float> LossesOf(const Matrix& m) {
  std::vector<float> losses(m.x.size());
  for (size_t i = 0; i < losses.size(); ++i) losses[i] = LossOf(m, i);
  return losses;
}

// What an element misses beside its code and the low-rank residual.
float DifferenceOf(const Matrix& m, size_t i) {
  const size_t token = i / m.rank, channel = i % m.rank;
  double rest = LossOf(m, i);
  for (int f = 0; f < m.factors.lowrank; ++f) {
    rest -= double{m.factors.a[f * m.n_tokens + token]} * m.factors.b[f * m.rank + channel];
  }
  return static_cast<float>(rest);
}

std::vector<float> ResidualOf(const Matrix& m) {
  std::vector<float> residual(m.x.size());
  for (size_t i = 0; i < residual.size(); ++i) residual[i] = m.is_exact[i] ? 0 : LossOf(m, i);
  return residual;
}

// The exact entries of a block of K (lanes are tokens) or V (lanes are channels), of each lane.
std::vector<std::vector<int>> PlacesOfLanes(const Matrix& m, int block, bool is_key) {
  std::vector<std::vector<int>> lanes(is_key ? kTokens : m.rank);
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < m.rank; ++c) {
      if (!m.is_exact[m.at(block * kTokens + t, c)]) continue;
      lanes[is_key ? t : c].push_back(is_key ? c : t);
    }
  }
  return lanes;
}

// Counts of a byte each, or of two.
void AppendCounts(const Matrix& m, int block, bool is_key, std::vector<std::byte>* to) {
  for (const std::vector<int>& places : PlacesOfLanes(m, block, is_key)) {
    if (is_key && m.rank == 256) {
      Append(static_cast<uint16_t>(places.size()), to);
    } else {
      Append(static_cast<uint8_t>(places.size()), to);
    }
  }
}

void AppendFactors(int64_t n_bytes, RefObject* object) {
  object->factors_begin = static_cast<int64_t>(object->bytes.size());
  object->bytes.resize(object->bytes.size() + n_bytes);
  object->factors_end = static_cast<int64_t>(object->bytes.size());
}

void MarkOutliers(const PackedFormat& format, const LayerCodebooks& codebooks,
                  std::vector<Matrix>* ks, std::vector<Matrix>* vs) {
  const double share = format.sparse_share;
  const int n_tokens = (*ks)[0].n_tokens;
  int layer_rank = 0;
  for (const Matrix& v : *vs) layer_rank += v.rank;
  const int n_keys = static_cast<int>(n_tokens * share / 2);
  int n_values = static_cast<int>(layer_rank * share / 2);
  if (KeySide(format.codec).has_codebook && share > 0) {
    // At or beyond the quantile that is interpolated between the sorted values.
    n_values = layer_rank - static_cast<int>(std::ceil((1 - share / 2) * (layer_rank - 1)));
  }
  for (size_t h = 0; h < ks->size(); ++h) {
    Matrix& k = (*ks)[h];
    if (KeySide(format.codec).has_codebook) {
      MarkFarthest(codebooks.key_scales[h], share, &k);
      continue;
    }
    for (int c = 0; c < k.rank; ++c) {
      Elements column(n_tokens);
      for (int t = 0; t < n_tokens; ++t) column[t] = {&k, k.at(t, c)};
      MarkExact(column, n_keys);
    }
  }
  for (int t = 0; t < n_tokens; ++t) {
    Elements column;
    for (Matrix& v : *vs) {
      for (int c = 0; c < v.rank; ++c) column.push_back({&v, v.at(t, c)});
    }
    MarkExact(column, n_values);
  }
}

// Lists of the exact entries: where those of each part end, then their differences, then their
// places.
class EntryLists {
 public:
  // By 16 lanes, then two of each lane in turn.
  void Add(const Matrix& m, int block, bool is_key) {
    const std::vector<std::vector<int>> lanes = PlacesOfLanes(m, block, is_key);
    for (size_t first = 0; first < lanes.size(); first += 16) {
      for (size_t round = 0; round < 256; ++round) {
        for (size_t lane = first; lane < first + 16; ++lane) {
          for (size_t i = 2 * round; i < std::min(2 * round + 2, lanes[lane].size()); ++i) {
            const int place = lanes[lane][i], at = static_cast<int>(lane);
            AddEntry(DifferenceOf(m, is_key ? m.at(block * kTokens + at, place)
                                            : m.at(block * kTokens + place, at)),
                     place);
          }
        }
      }
    }
    Append(end_, &ends_);
  }
  bool empty() const { return end_ == 0; }
  void AppendTo(std::vector<std::byte>* to) const {
    if (end_ == 0) return;
    for (const auto* part : {&ends_, &differences_, &places_}) {
      to->insert(to->end(), part->begin(), part->end());
    }
  }

 private:
  void AddEntry(float difference, int place) {
    uint32_t bits;
    std::memcpy(&bits, &difference, sizeof(bits));
    bits += 0x7fff + (bits >> 16) % 2;  // to nearest even
    Append(static_cast<uint16_t>(bits >> 16), &differences_);
    Append(static_cast<uint8_t>(place), &places_);
    ++end_;
  }

  uint32_t end_ = 0;
  std::vector<std::byte> ends_, differences_, places_;
};

// Scales of the whole layer. Those of the heads come with MakeHead, which finds the codes that
// exact entries differ from: they are added behind it.
RefObject MakeLayerScales(const PackedFormat& format, const Codebook& codebook,
                          std::vector<Matrix>* vs) {
  RefObject record;
  const PackedSide side = ValueSide(format.codec);
  if (side.sharing != ScaleSharing::kTokenLayer) return record;
  const int n_blocks = (*vs)[0].n_tokens / kTokens;
  for (int b = 0; b < n_blocks; ++b) {
    std::vector<Scale> scales;
    for (int t = b * kTokens; t < (b + 1) * kTokens; ++t) {
      Elements elements;
      for (Matrix& v : *vs) {
        for (int c = 0; c < v.rank; ++c) elements.push_back({&v, v.at(t, c)});
      }
      scales.push_back(KeySide(format.codec).has_codebook ? EncodeGroup(codebook, elements)
                                                          : QuantiseGroup(side, elements));
    }
    for (const Scale& s : scales) Append(s.scale_bits, &record.bytes);
    for (const Scale& s : scales) Append(s.min_bits, &record.bytes);
  }
  return record;
}

// Divides the rows of a head by its balance.
void DivideByBalance(const RefBalance& balance, int tile, Matrix* k, Matrix* v) {
  for (int t = 0; t < k->n_tokens; ++t) {
    for (int c = 0; c < k->rank; ++c) k->x[k->at(t, c)] /= F16ValueRef(balance.k[t]);
    for (int c = 0; c < v->rank; ++c) {
      v->x[v->at(t, c)] /= F16ValueRef(balance.v[t / tile * v->rank + c]);
    }
  }
}

// layer_has_exact: that there are exact entries of V. `balance` may be null.
RefSealedHead MakeHead(const PackedFormat& format, const RefBalance* balance, bool is_prompt,
                       bool layer_has_exact, Matrix* k, Matrix* v) {
  RefSealedHead head;
  const int n_blocks = k->n_tokens / kTokens;
  const int lowrank = is_prompt ? format.prompt_rank : format.decode_rank;
  const PackedSide k_side = KeySide(format.codec), v_side = ValueSide(format.codec);
  if (k_side.sharing == ScaleSharing::kChannel) {
    AppendChannelScales(k, k_side, &head.record.bytes);
  }
  if (balance != nullptr) {
    for (const uint16_t bits : balance->v) Append(bits, &head.record.bytes);
  }
  AppendFactors(int64_t{2} * lowrank * (k->rank + v->rank), &head.record);
  const auto has_exact = [](const Matrix& m) {
    return std::find(m.is_exact.begin(), m.is_exact.end(), true) != m.is_exact.end();
  };
  for (int b = 0; b < n_blocks; ++b) {
    RefObject block;
    std::vector<std::byte> scales;
    if (k_side.sharing == ScaleSharing::kToken) AppendTokenScales(k, format, k_side, b, &scales);
    for (int t = b * kTokens; balance != nullptr && t < (b + 1) * kTokens; ++t) {
      Append(balance->k[t], &scales);
    }
    if (v_side.sharing == ScaleSharing::kToken) AppendTokenScales(v, format, v_side, b, &scales);
    AppendKeyCodes(*k, b, k_side.bits, &block.bytes);
    AppendValueCodes(*v, b, v_side.bits, &block.bytes);
    block.bytes.insert(block.bytes.end(), scales.begin(), scales.end());
    AppendFactors(int64_t{2} * 2 * kTokens * lowrank, &block);
    if (has_exact(*k)) AppendCounts(*k, b, true, &block.bytes);
    if (layer_has_exact) AppendCounts(*v, b, false, &block.bytes);
    head.blocks.push_back(block);
  }
  EntryLists lists;
  for (int b = 0; b < n_blocks; ++b) lists.Add(*k, b, true);
  lists.AppendTo(&head.record.bytes);
  head.residual_k = ResidualOf(*k);
  head.residual_v = ResidualOf(*v);
  head.loss_k = LossesOf(*k);
  head.loss_v = LossesOf(*v);
  head.is_exact_k = k->is_exact;
  head.is_exact_v = v->is_exact;
  return head;
}

}  // namespace

uint16_t F16BitsRef(float x) {
  const int sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  if (magnitude >= 65504) return static_cast<uint16_t>(sign | 0x7bff);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  // Steps of 2^-24 up to 2^-14, then of 1/1024 of the power of two below.
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const int steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + steps));
}

float F16ValueRef(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
}

RefSealed SealRef(const RefSealInput& input) {
  const PackedFormat& format = input.format;
  const LayerCodebooks& codebooks = input.codebooks;
  const std::vector<RefHead>& heads = input.heads;
  std::vector<Matrix> ks, vs;
  for (size_t h = 0; h < heads.size(); ++h) {
    const bool has_factors = !input.k_factors.empty();
    ks.emplace_back(heads[h].k, heads[h].rank_k, has_factors ? input.k_factors[h] : RefFactors());
    vs.emplace_back(heads[h].v, heads[h].rank_v, has_factors ? input.v_factors[h] : RefFactors());
  }
  MarkOutliers(format, codebooks, &ks, &vs);
  RefSealed sealed;
  sealed.layer_record = MakeLayerScales(format, codebooks.v, &vs);
  const bool has_exact_values = std::any_of(vs.begin(), vs.end(), [](const Matrix& v) {
    return std::find(v.is_exact.begin(), v.is_exact.end(), true) != v.is_exact.end();
  });
  for (size_t h = 0; h < heads.size(); ++h) {
    if (KeySide(format.codec).has_codebook)
      EncodeKeys(codebooks.k, codebooks.key_scales[h], &ks[h]);
    const RefBalance* balance = input.balances.empty() ? nullptr : &input.balances[h];
    if (balance != nullptr) {
      DivideByBalance(*balance, KeySide(format.codec).balanced_tokens, &ks[h], &vs[h]);
    }
    sealed.heads.push_back(
        MakeHead(format, balance, input.is_prompt, has_exact_values, &ks[h], &vs[h]));
  }
  EntryLists lists;
  for (int b = 0; b < vs[0].n_tokens / kTokens; ++b) {
    for (const Matrix& v : vs) lists.Add(v, b, false);
  }
  lists.AppendTo(&sealed.layer_record.bytes);
  return sealed;
}

}  // namespace kvlathe
