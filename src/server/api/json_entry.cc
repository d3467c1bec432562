#include "server/api/json_entry.h"

#include <set>
#include <string>
#include <vector>

namespace kvlathe::api {
namespace {

// Reads without building anything, so that what is refused costs next to nothing.
class BoundsCheck : public nlohmann::json_sax<Json> {
 public:
  explicit BoundsCheck(const JsonBounds& bounds) : bounds_(bounds) {}

  const Status& status() const { return status_; }

  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return Count(); }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return Enter();
  }
  bool key(string_t& name) override {
    std::set<std::string>& keys = keys_.back();
    if (!keys.insert(name).second) {
      return Fail("the key '{}' is twice in one object; give it once", Shortened(name));
    }
    if (std::ssize(keys) <= bounds_.max_object_keys) return true;
    return Fail("an object has more than {} keys", bounds_.max_object_keys);
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ...": without the name.
    const std::string_view what = error.what();
    const size_t text = what.find("] ");
    return Fail("not valid JSON at byte {}: {}", position,
                what.substr(text == std::string_view::npos ? 0 : text + 2));
  }

 private:
  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    status_ = Error(StatusCode::kInvalidArgument, "the body: {}",
                    fmt::format(format, std::forward<Args>(args)...));
    return false;
  }
  static std::string Shortened(const std::string& text) {
    constexpr size_t kShown = 64;
    return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
  }
  bool Count() {
    if (++n_values_ <= bounds_.max_values) return true;
    return Fail("more than {} values in one body", bounds_.max_values);
  }
  bool Enter() {
    if (++depth_ <= bounds_.max_depth) return Count();
    return Fail("arrays and objects lie more than {} deep in each other", bounds_.max_depth);
  }

  const JsonBounds& bounds_;
  int depth_ = 0;
  int n_values_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  Status status_;
};

}  // namespace

StatusOr<Json> ParseJsonObject(std::string_view body, const JsonBounds& bounds) {
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return Error(StatusCode::kInvalidArgument, "the body is empty; send a JSON object");
  }
  BoundsCheck check(bounds);
  if (!Json::sax_parse(body, &check)) return check.status();
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return Error(StatusCode::kInvalidArgument, "the body is a JSON {}; send an object",
                 json.type_name());
  }
  return json;
}

}  // namespace kvlathe::api
