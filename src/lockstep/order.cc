#include "lockstep/order.h"

#include <string_view>
#include <utility>

#include "io/byte_reader.h"

namespace kvlathe {
namespace {

class MessageWriter {
 public:
  template <typename T>
  void Number(const T& value) {
    AppendBytes(value, &bytes_);
  }
  void Text(const std::string& text) {
    Number<uint64_t>(text.size());
    bytes_ += text;
  }
  template <typename T>
  void Array(const std::vector<T>& values) {
    Number<uint64_t>(values.size());
    AppendArray(std::span(values), &bytes_);
  }
  std::vector<std::byte> Take() const {
    const auto bytes = std::as_bytes(std::span(bytes_));
    return {bytes.begin(), bytes.end()};
  }

 private:
  std::string bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : reader_(bytes) {}

  template <typename T>
  bool Number(T* value) {
    return reader_.Read(value);
  }
  bool Text(std::string* text) {
    uint64_t n = 0;
    std::string_view view;
    if (!reader_.Read(&n) || !reader_.ReadBytes(n, &view)) return false;
    *text = view;
    return true;
  }
  template <typename T>
  bool Array(std::vector<T>* values) {
    uint64_t n = 0;
    return reader_.Read(&n) && reader_.ReadArray(n, values);
  }
  // How many things follow that take at least a byte each.
  bool Count(uint64_t* n) { return reader_.Read(n) && *n <= reader_.rest().size(); }
  bool is_at_end() const { return reader_.rest().empty(); }

 private:
  ByteReader reader_;
};

bool ReadOrder(MessageReader* in, RankOrder* order) {
  uint64_t n_parts = 0;
  uint8_t kind = 0;
  if (!in->Number(&kind) || kind >= RankOrder::kNumKinds || !in->Array(&order->events))
    return false;
  order->kind = static_cast<RankOrder::Kind>(kind);
  for (const CacheEvent& event : order->events) {
    if (static_cast<uint8_t>(event.kind) >= CacheEvent::kNumKinds) return false;
  }
  if (!in->Number(&order->model) || !in->Number(&order->cache) || !in->Number(&order->run_idx) ||
      !in->Text(&order->kv) || !in->Number(&order->rate) || !in->Count(&n_parts)) {
    return false;
  }
  order->parts.resize(n_parts);
  for (RankOrder::Part& part : order->parts) {
    if (!in->Number(&part.cache) || !in->Number(&part.logits) || !in->Array(&part.token_ids)) {
      return false;
    }
  }
  return in->Text(&order->identity) && in->Text(&order->payload) && in->is_at_end();
}

bool ReadAnswer(MessageReader* in, RankAnswer* answer) {
  uint64_t n_failures = 0;
  if (!in->Number(&answer->code) || !in->Text(&answer->message) || !in->Count(&n_failures)) {
    return false;
  }
  answer->failures.resize(n_failures);
  for (RankAnswer::Failure& failure : answer->failures) {
    if (!in->Number(&failure.step_idx) || !in->Number(&failure.code) ||
        !in->Text(&failure.message)) {
      return false;
    }
  }
  return in->Array(&answer->pools) && in->Text(&answer->payload) && in->is_at_end();
}

Status NoMessage() {
  return Error(
      StatusCode::kDataLoss,
      "a message of another rank cannot be read; all ranks must be of one build of kvlathe");
}

}  // namespace

std::vector<std::byte> Encode(const RankOrder& order) {
  MessageWriter out;
  out.Number(static_cast<uint8_t>(order.kind));
  out.Array(order.events);
  out.Number(order.model);
  out.Number(order.cache);
  out.Number(order.run_idx);
  out.Text(order.kv);
  out.Number(order.rate);
  out.Number<uint64_t>(order.parts.size());
  for (const RankOrder::Part& part : order.parts) {
    out.Number(part.cache);
    out.Number(part.logits);
    out.Array(part.token_ids);
  }
  out.Text(order.identity);
  out.Text(order.payload);
  return out.Take();
}

std::vector<std::byte> Encode(const RankAnswer& answer) {
  MessageWriter out;
  out.Number(answer.code);
  out.Text(answer.message);
  out.Number<uint64_t>(answer.failures.size());
  for (const RankAnswer::Failure& failure : answer.failures) {
    out.Number(failure.step_idx);
    out.Number(failure.code);
    out.Text(failure.message);
  }
  out.Array(answer.pools);
  out.Text(answer.payload);
  return out.Take();
}

StatusOr<RankOrder> DecodeOrder(std::span<const std::byte> bytes) {
  RankOrder order;
  MessageReader in(bytes);
  if (!ReadOrder(&in, &order)) return NoMessage();
  return order;
}

StatusOr<RankAnswer> DecodeAnswer(std::span<const std::byte> bytes) {
  RankAnswer answer;
  MessageReader in(bytes);
  if (!ReadAnswer(&in, &answer)) return NoMessage();
  return answer;
}

}  // namespace kvlathe
