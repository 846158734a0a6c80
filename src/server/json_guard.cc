#include "server/json_guard.h"

#include <vector>

#include "server/limits.h"

namespace vayu::server {
namespace {

// Counts what a document would hold; false from a callback stops nlohmann's (iterative) parser.
class Guard : public nlohmann::json_sax<Json> {
 public:
  const std::string& fault() const { return fault_; }
  const std::string& field() const { return field_; }
  ErrorKind kind() const { return kind_; }

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }

  bool start_object(size_t) override {
    object_keys_.push_back(0);
    return open();
  }
  bool key(string_t& name) override {
    if (depth_ == 1) field_ = name.substr(0, kMaxNameBytes);
    if (++object_keys_.back() > kMaxJsonObjectKeys) return fail("an object has more than {} keys", kMaxJsonObjectKeys);
    if (++num_keys_ > kMaxJsonKeys) return fail("there are more than {} keys", kMaxJsonKeys);
    return true;
  }
  bool end_object() override {
    object_keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override { return open(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    kind_ = ErrorKind::kInvalidArgument;
    if (dynamic_cast<const nlohmann::detail::out_of_range*>(&error) != nullptr) {
      return fail("a number before byte {} is out of range", position);
    }
    return fail("it is not valid JSON near byte {}", position);
  }

 private:
  bool open() {
    if (++depth_ > kMaxJsonDepth) return fail("it is nested more than {} deep", kMaxJsonDepth);
    return value();
  }
  bool value() {
    if (++num_values_ > kMaxJsonValues) return fail("there are more than {} values", kMaxJsonValues);
    return true;
  }
  template <class T>
  bool fail(fmt::format_string<T&> format, T number) {
    fault_ = fmt::format(format, number);
    return false;
  }

  int depth_ = 0;
  size_t num_values_ = 0;
  size_t num_keys_ = 0;
  std::vector<size_t> object_keys_;  // of each open object
  std::string field_;
  std::string fault_;
  ErrorKind kind_ = ErrorKind::kTooLarge;
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  Guard guard;
  if (!Json::sax_parse(text.begin(), text.end(), &guard)) {
    return Error{guard.kind(), fmt::format("{} was refused: {}.", what, guard.fault()), guard.field()};
  }
  Json document = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  VAYU_CHECK(!document.is_discarded(), "the guard passed what the parser refuses");
  return document;
}

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace vayu::server
