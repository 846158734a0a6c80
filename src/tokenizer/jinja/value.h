// Values of the template language, with Python's behaviour: truth, equality, order, printing.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/jinja/fault.h"
#include "tokenizer/jinja/text.h"

namespace vayu::jinja {

class Value;
struct List;
struct Dict;
struct Object;
struct Callable;

struct Undefined {
  std::shared_ptr<const std::string> hint;  // what is missing, for the message; may be null
};
struct None {};

using TextPtr = std::shared_ptr<const Text>;
using ListPtr = std::shared_ptr<List>;
using DictPtr = std::shared_ptr<const Dict>;
using CallablePtr = std::shared_ptr<const Callable>;

class Value {
 public:
  Value() = default;  // undefined
  Value(Undefined v) : v_(std::move(v)) {}
  Value(None v) : v_(v) {}
  Value(bool v) : v_(v) {}
  Value(int64_t v) : v_(v) {}
  Value(double v) : v_(v) {}
  Value(Text v) : v_(std::make_shared<const Text>(std::move(v))) {}
  Value(TextPtr v) : v_(std::move(v)) {}
  Value(ListPtr v) : v_(std::move(v)) {}
  Value(DictPtr v) : v_(std::move(v)) {}
  Value(Object* v) : v_(v) {}
  Value(CallablePtr v) : v_(std::move(v)) {}
  template <class T>
  Value(T*) = delete;  // a char pointer must not become a bool

  template <class T>
  const T* get() const {
    return std::get_if<T>(&v_);
  }
  bool undefined() const { return get<Undefined>(); }
  bool none() const { return get<None>(); }
  bool is_bool() const { return get<bool>(); }
  bool is_number() const { return get<bool>() || get<int64_t>() || get<double>(); }
  bool is_integral() const { return get<bool>() || get<int64_t>(); }  // True and False count as 1 and 0
  const Text* text() const { return get<TextPtr>() ? get<TextPtr>()->get() : nullptr; }
  List* list() const { return get<ListPtr>() ? get<ListPtr>()->get() : nullptr; }
  const Dict* dict() const { return get<DictPtr>() ? get<DictPtr>()->get() : nullptr; }
  Object* object() const { return get<Object*>() ? *get<Object*>() : nullptr; }
  const Callable* callable() const { return get<CallablePtr>() ? get<CallablePtr>()->get() : nullptr; }
  int64_t as_int() const { return is_bool() ? *get<bool>() : *get<int64_t>(); }  // needs is_integral()
  double as_double() const { return get<double>() ? *get<double>() : static_cast<double>(as_int()); }  // is_number()

 private:
  std::variant<Undefined, None, bool, int64_t, double, TextPtr, ListPtr, DictPtr, Object*, CallablePtr> v_;
};

// Python's sequence-like types. A generator can be walked once; views, ranges and generators cannot be told apart from
// lists by templates except in printing, indexing and length.
enum class ListKind : uint8_t { kList, kTuple, kRange, kKeys, kValues, kItems, kGenerator };

struct List {
  ListKind kind = ListKind::kList;
  int depth = 1;
  int64_t weight = 1;  // values in it, counted as a tree: bounds every recursive walk
  std::vector<Value> items;
  int64_t range[3] = {0, 0, 1};  // start, stop, step of a kRange
  bool indexable() const { return kind <= ListKind::kRange; }
};

// Insertion order is kept. Keys are numbers, None, strings or tuples of those.
struct Dict {
  int depth = 1;
  int64_t weight = 1;
  std::vector<std::pair<Value, Value>> entries;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // throws on an unhashable key

 private:
  std::unordered_map<std::string, size_t> string_index_;  // kept once there are more than a few entries
};

// Objects with state. Owned by the interpreter until the render ends, so that values may point to each other freely.
struct Object {
  enum class Kind : uint8_t { kNamespace, kCycler, kJoiner, kLoop } kind = Kind::kNamespace;
  virtual ~Object() = default;
  std::vector<std::pair<std::string, Value>> attributes;  // namespace
  std::vector<Value> items;                               // cycler; the joiner's separator
  size_t position = 0;
};

const char* type_name(const Value& v);  // Python's name, for messages
int value_depth(const Value& v);
int64_t value_weight(const Value& v);  // about the work of walking it once: tree nodes, 64-byte pieces of text
Value make_list(std::vector<Value> items,
                ListKind kind = ListKind::kList);  // kTooLarge when nested too deeply or too big
Value make_dict(Dict dict);
Value make_undefined(std::string hint);
Value from_json(const nlohmann::ordered_json& json, bool trusted, int depth = 1);

bool truthy(const Value& v);
bool equals(const Value& a, const Value& b);
// -1, 0, 1, or 2 when not ordered (NaN). Throws when Python would.
int compare(const Value& a, const Value& b);
bool hashable(const Value& v);

std::string float_repr(double v);
std::string text_repr(std::string_view s);
// repr(v). Throws for values whose Python form holds an address, and past the text limit.
std::string repr(const Value& v);
TextPtr to_text(const Value& v);  // str(v); marks of texts are kept, all else is untrusted

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool pretty = false;  // with `indent` before each level
  std::string indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string dump_json(const Value& v, const JsonStyle& style);

}  // namespace vayu::jinja
