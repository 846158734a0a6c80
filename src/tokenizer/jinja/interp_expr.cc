#include <algorithm>

#include "tokenizer/jinja/interp.h"

namespace vayu::jinja {

std::vector<const Value*> Args::bind(std::string_view function, std::initializer_list<std::string_view> names,
                                     size_t required) const {
  std::vector<const Value*> bound(names.size(), nullptr);
  if (positional.size() > names.size()) fail("{}() takes at most {} arguments", function, names.size());
  for (size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) fail("{}() has no argument '{}'", function, name);
    const Value*& slot = bound[static_cast<size_t>(it - names.begin())];
    if (slot) fail("{}() got two values for '{}'", function, name);
    slot = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!bound[i]) fail("{}() needs argument '{}'", function, *(names.begin() + static_cast<long>(i)));
  }
  return bound;
}

void Interp::charge_bytes(size_t bytes) {
  bytes_ += static_cast<int64_t>(bytes);
  if (bytes_ > kMaxTotalBytes) fail(ErrorKind::kTooLarge, "template makes more than {} bytes of data", kMaxTotalBytes);
}

Value Interp::text(Text t) {
  if (t.size() > kMaxTextBytes) fail(ErrorKind::kTooLarge, "text of more than {} bytes", kMaxTextBytes);
  charge(1);
  charge_bytes(t.size() + sizeof(Text));
  return Value(std::move(t));
}

Value Interp::list(std::vector<Value> items, ListKind kind) {
  charge(static_cast<int64_t>(items.size()));
  charge_bytes(items.size() * sizeof(Value) + sizeof(List));
  return make_list(std::move(items), kind);
}

TextPtr Interp::str(const Value& v) {
  if (const auto* t = v.get<TextPtr>()) return *t;
  charge_walk(v);
  TextPtr t = to_text(v);
  charge_bytes(t->size());
  return t;
}

Object* Interp::new_object(Object::Kind kind) {
  charge_bytes(sizeof(Object));
  objects_.push_back(std::make_unique<Object>());
  objects_.back()->kind = kind;
  return objects_.back().get();
}

Value Interp::eval(const Expr& e) {
  DepthGuard guard(*this);
  charge(1);
  line_ = e.line;
  switch (e.kind) {
    case ExprKind::kConst:
      return e.constant;
    case ExprKind::kName:
      return eval_name(e);
    case ExprKind::kCaptured:
      return captured_;
    case ExprKind::kAttr:
      return attribute(eval(*e.args[0]), e.name);
    case ExprKind::kItem: {
      const Value object = eval(*e.args[0]);
      return item(object, eval(*e.args[1]));
    }
    case ExprKind::kSlice:
      return eval_slice(e);
    case ExprKind::kCall:
      return eval_call(e);
    case ExprKind::kFilter: {
      const Value input = eval(*e.args[0]);
      const Args args = eval_args(e);
      line_ = e.line;
      return e.filter(*this, input, args);
    }
    case ExprKind::kTest: {
      const Value input = eval(*e.args[0]);
      const Args args = eval_args(e);
      line_ = e.line;
      return e.test(*this, input, args);
    }
    case ExprKind::kNot:
      return !truthy(eval(*e.args[0]));
    case ExprKind::kNeg:
    case ExprKind::kPos:
      return eval_sign(e);
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Value left = eval(*e.args[0]);
      return truthy(left) == (e.kind == ExprKind::kOr) ? left : eval(*e.args[1]);
    }
    case ExprKind::kTernary:
      return eval_ternary(e);
    case ExprKind::kCompare:
      return eval_compare(e);
    case ExprKind::kConcat:
      return eval_concat(e);
    case ExprKind::kList:
    case ExprKind::kTuple:
    case ExprKind::kDict:
      return eval_group(e);
    default:
      return eval_binary(e);
  }
}

Value Interp::eval_name(const Expr& e) {
  const int id = e.name_id;
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    for (const auto& [name, value] : scope->vars) {
      if (name == id) return value;
    }
  }
  auto& global = globals_[static_cast<size_t>(id)];
  if (global) return *global;
  const std::string& name = code_.names[static_cast<size_t>(id)];
  if (const auto it = context_.find(name); it != context_.end()) {
    global = context_value(name, *it);
    charge_walk(*global);
  } else if (const Function function = find_function(name)) {
    global = CallablePtr(std::make_shared<BuiltinFunction>(function));
  } else {
    global = make_undefined(fmt::format("'{}' is undefined", name));
  }
  return *global;
}

Value Interp::eval_slice(const Expr& e) {
  const Value object = eval(*e.args[0]);
  Value parts[3];
  for (size_t i = 0; i < 3; ++i) parts[i] = e.args[i + 1] ? eval(*e.args[i + 1]) : Value(None{});
  line_ = e.line;
  if (const List* list = object.list(); list && list->indexable()) {
    if (list->kind == ListKind::kRange) fail(ErrorKind::kUnsupported, "slice of a range");
    const SliceSpan span = resolve_slice(parts[0], parts[1], parts[2], static_cast<int64_t>(list->items.size()));
    std::vector<Value> items;
    for (int64_t i = 0; i < span.count; ++i)
      items.push_back(list->items[static_cast<size_t>(span.start + i * span.step)]);
    return this->list(std::move(items), list->kind);
  }
  const Text* t = object.text();
  if (!t) fail("a value of type {} cannot be sliced", type_name(object));
  if (t->markup) fail(ErrorKind::kUnsupported, "slice of safe or escaped text");
  charge_walk(object);
  // Offsets of the code points; for ASCII the offset is the index.
  std::vector<size_t> offsets;
  if (!is_ascii(t->str())) {
    for (size_t i = 0; i < t->size(); ++i) {
      if (!is_continuation(t->str()[i])) offsets.push_back(i);
    }
    offsets.push_back(t->size());
  }
  const size_t size = offsets.empty() ? t->size() : offsets.size() - 1;
  auto offset = [&](int64_t i) { return offsets.empty() ? static_cast<size_t>(i) : offsets[static_cast<size_t>(i)]; };
  const SliceSpan span = resolve_slice(parts[0], parts[1], parts[2], static_cast<int64_t>(size));
  if (span.step == 1) return text(t->substr(offset(span.start), offset(span.start + span.count)));
  Text out;
  for (int64_t i = 0; i < span.count; ++i) {
    const int64_t at = span.start + i * span.step;
    out.append(*t, offset(at), offset(at + 1));
  }
  return text(std::move(out));
}

Args Interp::eval_args(const Expr& e) {
  Args args;
  for (size_t i = 1; i < e.args.size(); ++i) args.positional.push_back(eval(*e.args[i]));
  for (const auto& [name, value] : e.named) {
    for (const auto& earlier : args.named) {
      if (earlier.first == name) fail("argument '{}' is given twice", name);
    }
    args.named.emplace_back(name, eval(*value));
  }
  return args;
}

Value Interp::eval_call(const Expr& e) {
  const Value function = eval(*e.args[0]);
  const Args args = eval_args(e);
  line_ = e.line;
  return call(function, args);
}

Value Interp::eval_ternary(const Expr& e) {
  if (truthy(eval(*e.args[0]))) return eval(*e.args[1]);
  if (e.args[2]) return eval(*e.args[2]);
  return make_undefined("an inline if without else had a false condition");
}

Value Interp::eval_compare(const Expr& e) {
  Value left = eval(*e.args[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Value right = eval(*e.args[i + 1]);
    line_ = e.line;
    if (!compare_op(e.ops[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

bool Interp::compare_op(CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return same(a, b);
    case CompareOp::kNe:
      return !same(a, b);
    case CompareOp::kLt:
      return ordered(a, b) == -1;
    case CompareOp::kGt:
      return ordered(a, b) == 1;
    case CompareOp::kLe:
      return ordered(a, b) <= 0;
    case CompareOp::kGe: {
      const int c = ordered(a, b);
      return c == 0 || c == 1;
    }
    case CompareOp::kIn:
      return contains(b, a);
    case CompareOp::kNotIn:
      return !contains(b, a);
  }
  return false;
}

Value Interp::eval_concat(const Expr& e) {
  Text out;
  for (const auto& arg : e.args) {
    const TextPtr part = str(eval(*arg));
    if (out.size() + part->size() > kMaxTextBytes)
      fail(ErrorKind::kTooLarge, "text of more than {} bytes", kMaxTextBytes);
    out.append(*part);
  }
  return text(std::move(out));
}

Value Interp::eval_sign(const Expr& e) {
  const Value v = eval(*e.args[0]);
  line_ = e.line;
  if (v.undefined()) fail("{}", v.get<Undefined>()->hint ? *v.get<Undefined>()->hint : "undefined value");
  if (!v.is_number()) fail("bad operand of type {} for a sign", type_name(v));
  if (v.get<double>()) return e.kind == ExprKind::kNeg ? -*v.get<double>() : *v.get<double>();
  if (e.kind == ExprKind::kPos) return v.as_int();
  return arithmetic(ExprKind::kSub, Value(int64_t{0}), v);
}

Value Interp::eval_binary(const Expr& e) {
  const Value left = eval(*e.args[0]);
  const Value right = eval(*e.args[1]);
  line_ = e.line;
  for (const Value* v : {&left, &right}) {
    if (v->undefined()) fail("{}", v->get<Undefined>()->hint ? *v->get<Undefined>()->hint : "undefined value");
  }
  if (e.kind == ExprKind::kAdd) return add(left, right);
  if (e.kind == ExprKind::kMul) return multiply(left, right);
  if (e.kind == ExprKind::kMod && left.text()) {
    Args args;
    if (right.list() && right.list()->kind == ListKind::kTuple) {
      args.positional = right.list()->items;
    } else {
      args.positional.push_back(right);
    }
    return format_percent(*left.text(), args);
  }
  return arithmetic(e.kind, left, right);
}

Value Interp::eval_group(const Expr& e) {
  if (e.kind == ExprKind::kDict) {
    Dict dict;
    for (size_t i = 0; i < e.args.size(); i += 2) {
      Value key = eval(*e.args[i]);
      charge(static_cast<int64_t>(i) / 16);
      dict.set(std::move(key), eval(*e.args[i + 1]));
    }
    charge_bytes(e.args.size() * sizeof(Value) + sizeof(Dict));
    return make_dict(std::move(dict));
  }
  std::vector<Value> items;
  for (const auto& arg : e.args) items.push_back(eval(*arg));
  return list(std::move(items), e.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
}

}  // namespace vayu::jinja
