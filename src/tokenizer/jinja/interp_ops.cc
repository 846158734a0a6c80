// Operators, subscripts, calls and iteration.
#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/filters.h"
#include "tokenizer/jinja/interp.h"

namespace vayu::jinja {
namespace {

[[noreturn]] void fail_undefined(const Value& v) {
  const auto& hint = v.get<Undefined>()->hint;
  fail("{}", hint ? *hint : "undefined value");
}

const char* op_symbol(ExprKind kind) {
  switch (kind) {
    case ExprKind::kAdd:
      return "+";
    case ExprKind::kSub:
      return "-";
    case ExprKind::kMul:
      return "*";
    case ExprKind::kDiv:
      return "/";
    case ExprKind::kFloorDiv:
      return "//";
    case ExprKind::kMod:
      return "%";
    default:
      return "**";
  }
}

[[noreturn]] void fail_operands(ExprKind kind, const Value& a, const Value& b) {
  fail("unsupported operand types for {}: '{}' and '{}'", op_symbol(kind), type_name(a), type_name(b));
}

void check_overflow(bool overflow) {
  if (overflow) fail(ErrorKind::kUnsupported, "integer result beyond 64 bits");
}

int64_t int_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if (exponent & 1) check_overflow(__builtin_mul_overflow(result, base, &result));
    exponent >>= 1;
    if (exponent > 0) check_overflow(__builtin_mul_overflow(base, base, &base));
  }
  return result;
}

int64_t floor_div(int64_t a, int64_t b) {
  if (b == -1) {
    check_overflow(a == INT64_MIN);
    return -a;
  }
  return a / b - (a % b != 0 && ((a < 0) != (b < 0)) ? 1 : 0);
}

Value int_arithmetic(ExprKind kind, int64_t a, int64_t b) {
  int64_t r = 0;
  const bool divides = kind == ExprKind::kDiv || kind == ExprKind::kFloorDiv || kind == ExprKind::kMod;
  if (divides && b == 0) fail("division by zero");
  switch (kind) {
    case ExprKind::kAdd:
      check_overflow(__builtin_add_overflow(a, b, &r));
      return r;
    case ExprKind::kSub:
      check_overflow(__builtin_sub_overflow(a, b, &r));
      return r;
    case ExprKind::kMul:
      check_overflow(__builtin_mul_overflow(a, b, &r));
      return r;
    case ExprKind::kDiv:
      return static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b));
    case ExprKind::kFloorDiv:
      return floor_div(a, b);
    case ExprKind::kMod:
      r = b == -1 ? 0 : a % b;
      return r != 0 && (r < 0) != (b < 0) ? r + b : r;
    default:
      return int_power(a, b);
  }
}

double float_mod(double a, double b) {  // the sign of the divisor, as in Python
  double r = std::fmod(a, b);
  if (r != 0) return (r < 0) != (b < 0) ? r + b : r;
  return std::copysign(0.0, b);
}

double float_floor_div(double a, double b) {
  const double mod = std::fmod(a, b);
  double div = (a - mod) / b;
  if (mod != 0 && (mod < 0) != (b < 0)) div -= 1;
  if (div == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(div);
  return div - floored > 0.5 ? floored + 1 : floored;
}

Value float_arithmetic(ExprKind kind, double a, double b) {
  const bool divides = kind == ExprKind::kDiv || kind == ExprKind::kFloorDiv || kind == ExprKind::kMod;
  if (divides && b == 0) fail("division by zero");
  switch (kind) {
    case ExprKind::kAdd:
      return a + b;
    case ExprKind::kSub:
      return a - b;
    case ExprKind::kMul:
      return a * b;
    case ExprKind::kDiv:
      return a / b;
    case ExprKind::kFloorDiv:
      return float_floor_div(a, b);
    case ExprKind::kMod:
      return float_mod(a, b);
    default: {
      if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
      if (a < 0 && std::floor(b) != b && std::isfinite(b)) fail(ErrorKind::kUnsupported, "complex result of **");
      const double r = std::pow(a, b);
      if (std::isinf(r) && std::isfinite(a) && std::isfinite(b)) fail("float result out of range");
      return r;
    }
  }
}

bool same_kind_lists(const Value& a, const Value& b) {
  return a.list() && b.list() && a.list()->kind == b.list()->kind && a.list()->kind <= ListKind::kTuple;
}

}  // namespace

SliceSpan resolve_slice(const Value& start, const Value& stop, const Value& step, int64_t size) {
  auto number = [](const Value& v, int64_t absent) {
    if (v.none()) return absent;
    if (!v.is_integral()) fail("slice bounds must be integers or None, not {}", type_name(v));
    return v.as_int();
  };
  const int64_t by = number(step, 1);
  if (by == 0) fail("slice step cannot be zero");
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  auto bound = [&](const Value& v, int64_t absent) {
    if (v.none()) return absent;
    const int64_t i = number(v, 0);
    return i < 0 ? std::max(i + size, low) : std::min(i, high);
  };
  const int64_t first = bound(start, by > 0 ? low : high);
  const int64_t last = bound(stop, by > 0 ? high : low);
  // Distance over step, rounded up; steps longer than the text are cut so that nothing overflows.
  const int64_t stride = std::clamp<int64_t>(by, -size - 1, size + 1);
  const int64_t distance = by > 0 ? last - first : first - last;
  const int64_t size_of_step = by > 0 ? stride : -stride;
  return {first, stride, distance <= 0 ? 0 : (distance + size_of_step - 1) / size_of_step};
}

Value Interp::arithmetic(ExprKind kind, const Value& a, const Value& b) {
  if (a.undefined()) fail_undefined(a);
  if (b.undefined()) fail_undefined(b);
  if (!a.is_number() || !b.is_number()) fail_operands(kind, a, b);
  const bool negative_power = kind == ExprKind::kPow && b.is_integral() && b.as_int() < 0;
  if (a.is_integral() && b.is_integral() && !negative_power) return int_arithmetic(kind, a.as_int(), b.as_int());
  return float_arithmetic(kind, a.as_double(), b.as_double());
}

Value Interp::add(const Value& a, const Value& b) {
  if (a.text() && b.text()) {
    if (a.text()->size() + b.text()->size() > kMaxTextBytes) fail(ErrorKind::kTooLarge, "text too long");
    const bool markup = a.text()->markup || b.text()->markup;
    Text out;
    for (const Text* t : {a.text(), b.text()}) out.append(markup && !t->markup ? escape_html(*t) : *t);
    out.markup = markup;
    return text(std::move(out));
  }
  if (same_kind_lists(a, b)) {
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return list(std::move(items), a.list()->kind);
  }
  return arithmetic(ExprKind::kAdd, a, b);
}

Value Interp::multiply(const Value& a, const Value& b) {
  const bool repeat_a = (a.text() || a.list()) && b.is_integral();
  if (!repeat_a && !((b.text() || b.list()) && a.is_integral())) return arithmetic(ExprKind::kMul, a, b);
  const Value& what = repeat_a ? a : b;
  const int64_t times = std::max<int64_t>(0, (repeat_a ? b : a).as_int());
  const size_t size = what.text() ? what.text()->size() : what.list()->items.size();
  if (size > 0 && static_cast<uint64_t>(times) > kMaxTextBytes / size) fail(ErrorKind::kTooLarge, "repeated too often");
  if (size > 0) charge(times);
  if (what.text()) {
    if (what.text()->markup) fail(ErrorKind::kUnsupported, "repetition of safe or escaped text");
    Text out;
    for (int64_t i = 0; size > 0 && i < times; ++i) out.append(*what.text());
    return text(std::move(out));
  }
  if (what.list()->kind > ListKind::kTuple) fail_operands(ExprKind::kMul, a, b);
  charge(times * static_cast<int64_t>(size));
  std::vector<Value> items;
  for (int64_t i = 0; size > 0 && i < times; ++i) {
    items.insert(items.end(), what.list()->items.begin(), what.list()->items.end());
  }
  return list(std::move(items), what.list()->kind);
}

Value Interp::attribute(const Value& object, const std::string& name) {
  if (object.undefined()) fail_undefined(object);
  if (object.text() && object.text()->markup) fail(ErrorKind::kUnsupported, "methods of safe or escaped text");
  if (object.object() || object.text() || object.list() || object.dict()) {
    if (const Method method = find_method(object, name)) {
      if (value_depth(object) >= kMaxValueDepth) fail(ErrorKind::kTooLarge, "value nested too deeply");
      charge_bytes(sizeof(BoundMethod));
      return CallablePtr(std::make_shared<BoundMethod>(object, method));
    }
  }
  if (object.object()) return object_attribute(*this, *object.object(), name);
  if (unsupported_method(object, name)) {
    fail(ErrorKind::kUnsupported, "method or attribute '{}' of a {}", name, type_name(object));
  }
  if (object.dict() && !hidden_dict_method(name)) {
    charge(1 + static_cast<int64_t>(name.size() / 64));
    if (const Value* found = object.dict()->find(std::string_view(name))) return *found;
  }
  return make_undefined(fmt::format("a value of type {} has no attribute '{}'", type_name(object), name));
}

Value Interp::item(const Value& object, const Value& key) {
  if (object.undefined()) fail_undefined(object);
  charge_walk(key);
  if (object.dict() && hashable(key)) {
    if (!key.text()) charge(static_cast<int64_t>(object.dict()->entries.size()));
    if (const Value* found = object.dict()->find(key)) return *found;
  } else if (key.is_integral() && (object.text() || (object.list() && object.list()->indexable()))) {
    int64_t i = key.as_int();
    if (object.list()) {
      const auto size = static_cast<int64_t>(object.list()->items.size());
      if (i < 0) i += size;
      if (i >= 0 && i < size) return object.list()->items[static_cast<size_t>(i)];
    } else {
      Value c = char_at(*this, *object.text(), i);
      if (!c.undefined()) return c;
    }
  }
  if (key.text() && !object.dict()) return attribute(object, key.text()->str());
  if (key.text() && find_method(object, key.text()->str())) return attribute(object, key.text()->str());
  return make_undefined(fmt::format("a value of type {} has no such element", type_name(object)));
}

Value Interp::path(const Value& object, const Value& path, const Value* fallback) {
  auto step = [&](const Value& from, const Value& key) {
    Value v = item(from, key);
    return v.undefined() && fallback && !fallback->none() ? *fallback : v;
  };
  if (!path.text()) return step(object, path);
  const std::string& parts = path.text()->str();
  Value current = object;
  for (size_t begin = 0; begin <= parts.size();) {
    const size_t end = std::min(parts.find('.', begin), parts.size());
    const std::string part = parts.substr(begin, end - begin);
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    current = step(current, number ? Value(static_cast<int64_t>(std::stol(part))) : Value(Text(part, true)));
    begin = end + 1;
  }
  return current;
}

Value Interp::call(const Value& function, const Args& args) {
  DepthGuard guard(*this);
  charge(1);
  if (function.undefined()) fail_undefined(function);
  if (function.object() && function.object()->kind == Object::Kind::kJoiner)
    return call_joiner(*this, *function.object());
  if (!function.callable()) fail("a value of type {} cannot be called", type_name(function));
  const Value keep_alive = function;  // the callee may replace the variable that holds it
  return keep_alive.callable()->call(*this, args);
}

std::vector<Value> Interp::iterate(const Value& v) {
  std::vector<Value> items;
  if (List* list = v.list()) {
    charge(static_cast<int64_t>(list->items.size()));
    charge_bytes(list->items.size() * sizeof(Value));
    return list->kind == ListKind::kGenerator ? std::exchange(list->items, {}) : list->items;
  }
  if (const Dict* dict = v.dict()) {
    charge(static_cast<int64_t>(dict->entries.size()));
    charge_bytes(dict->entries.size() * sizeof(Value));
    for (const auto& entry : dict->entries) items.push_back(entry.first);
    return items;
  }
  if (const Text* t = v.text()) {
    for (size_t i = 0, length; i < t->size(); i += length) {
      length = std::min(char_length(t->str()[i]), t->size() - i);
      items.push_back(text(t->substr(i, i + length)));
    }
    return items;
  }
  if (!v.undefined()) fail("a value of type {} cannot be iterated", type_name(v));
  return items;
}

bool Interp::contains(const Value& container, const Value& needle) {
  if (const Text* t = container.text()) {
    if (!needle.text()) fail("'in <str>' needs a str on the left, not {}", type_name(needle));
    charge_walk(container);
    return t->str().find(needle.text()->str()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    if (!hashable(needle)) fail("unhashable type {}", type_name(needle));
    charge(needle.text() ? value_weight(needle) : static_cast<int64_t>(dict->entries.size()));
    return dict->find(needle) != nullptr;
  }
  if (!container.list() && !container.undefined()) fail("a value of type {} has no members", type_name(container));
  if (container.undefined()) return false;
  const std::vector<Value>& items = container.list()->items;
  const bool found = std::any_of(items.begin(), items.end(), [&](const Value& item) { return same(item, needle); });
  if (container.list()->kind == ListKind::kGenerator) container.list()->items.clear();
  return found;
}

}  // namespace vayu::jinja
