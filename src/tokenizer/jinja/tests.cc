// Tests: what stands after `is`.
#include "tokenizer/jinja/filters.h"

namespace vayu::jinja {
namespace {

template <bool (*Check)(const Value&)>
bool plain(Interp&, const Value& v, const Args& args) {
  args.bind("test", {});
  return Check(v);
}

bool is_defined(const Value& v) { return !v.undefined(); }
bool is_undefined(const Value& v) { return v.undefined(); }
bool is_none(const Value& v) { return v.none(); }
bool is_string(const Value& v) { return v.text(); }
bool is_mapping(const Value& v) { return v.dict(); }
bool is_number(const Value& v) { return v.is_number(); }
bool is_integer(const Value& v) { return v.get<int64_t>(); }
bool is_float(const Value& v) { return v.get<double>(); }
bool is_boolean(const Value& v) { return v.is_bool(); }
bool is_true(const Value& v) { return v.is_bool() && v.as_int() == 1; }
bool is_false(const Value& v) { return v.is_bool() && v.as_int() == 0; }
bool is_iterable(const Value& v) { return v.list() || v.dict() || v.text() || v.undefined(); }
bool is_sequence(const Value& v) {  // has a length and subscripts: dicts and undefined count, as in jinja2
  return v.text() || v.dict() || v.undefined() || (v.list() && v.list()->indexable());
}
// jinja2's Undefined has a __call__ (which raises), so it counts.
bool is_callable(const Value& v) {
  return v.callable() || v.undefined() || (v.object() && v.object()->kind == Object::Kind::kJoiner);
}

int64_t integer(const Value& v) {
  if (!v.is_integral()) fail("an integer is needed, not {}", type_name(v));
  return v.as_int();
}
bool is_odd(const Value& v) { return integer(v) % 2 != 0; }
bool is_even(const Value& v) { return integer(v) % 2 == 0; }

bool is_cased_text(Interp& in, const Value& v, bool upper) {
  const TextPtr t = in.str(v);
  in.charge(static_cast<int64_t>(t->size()));
  bool any = false;
  for (size_t i = 0, length; i < t->size(); i += length) any |= is_cased(decode_at(t->str(), i, &length));
  return any && (upper ? to_upper(t->str()) : to_lower(t->str())) == t->str();
}
bool is_lower(Interp& in, const Value& v, const Args& args) {
  args.bind("lower", {});
  return is_cased_text(in, v, false);
}
bool is_upper(Interp& in, const Value& v, const Args& args) {
  args.bind("upper", {});
  return is_cased_text(in, v, true);
}

bool is_divisible(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("divisibleby", {"num"}, 1);
  return !truthy(in.arithmetic(ExprKind::kMod, v, *a[0]));
}

bool is_in(Interp& in, const Value& v, const Args& args) { return in.contains(*args.bind("in", {"seq"}, 1)[0], v); }

bool is_same(Interp&, const Value& v, const Args& args) {
  const Value& other = *args.bind("sameas", {"other"}, 1)[0];
  const bool singletons = (v.none() || v.is_bool()) || (other.none() || other.is_bool());
  if (!singletons) fail(ErrorKind::kUnsupported, "sameas of values other than true, false and none");
  return (v.none() && other.none()) || (v.is_bool() && other.is_bool() && v.as_int() == other.as_int());
}

template <bool Negate>
bool is_equal(Interp& in, const Value& v, const Args& args) {
  return in.same(v, *args.bind("eq", {"other"}, 1)[0]) != Negate;
}

// Bit 0: less passes; bit 1: equal passes; bit 2: greater passes.
template <int Passing>
bool is_ordered(Interp& in, const Value& v, const Args& args) {
  const int c = in.ordered(v, *args.bind("comparison", {"other"}, 1)[0]);
  return c != 2 && (Passing >> (c + 1) & 1);
}

constexpr Named<Test> kTests[] = {{"defined", plain<is_defined>},
                                  {"undefined", plain<is_undefined>},
                                  {"none", plain<is_none>},
                                  {"string", plain<is_string>},
                                  {"mapping", plain<is_mapping>},
                                  {"number", plain<is_number>},
                                  {"integer", plain<is_integer>},
                                  {"float", plain<is_float>},
                                  {"boolean", plain<is_boolean>},
                                  {"true", plain<is_true>},
                                  {"false", plain<is_false>},
                                  {"iterable", plain<is_iterable>},
                                  {"sequence", plain<is_sequence>},
                                  {"callable", plain<is_callable>},
                                  {"odd", plain<is_odd>},
                                  {"even", plain<is_even>},
                                  {"lower", is_lower},
                                  {"upper", is_upper},
                                  {"divisibleby", is_divisible},
                                  {"in", is_in},
                                  {"sameas", is_same},
                                  {"eq", is_equal<false>},
                                  {"equalto", is_equal<false>},
                                  {"==", is_equal<false>},
                                  {"ne", is_equal<true>},
                                  {"!=", is_equal<true>},
                                  {"lt", is_ordered<1>},
                                  {"lessthan", is_ordered<1>},
                                  {"<", is_ordered<1>},
                                  {"le", is_ordered<3>},
                                  {"<=", is_ordered<3>},
                                  {"gt", is_ordered<4>},
                                  {"greaterthan", is_ordered<4>},
                                  {">", is_ordered<4>},
                                  {"ge", is_ordered<6>},
                                  {">=", is_ordered<6>}};

}  // namespace

Test find_test(std::string_view name) { return find_named(std::span<const Named<Test>>(kTests), name); }

}  // namespace vayu::jinja
