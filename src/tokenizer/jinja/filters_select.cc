// map, select, reject and their attribute forms; and the lookup of filters by name.
#include "tokenizer/jinja/filters.h"

namespace vayu::jinja {
namespace {

Args tail(const Args& args, size_t from) {
  Args out;
  for (size_t i = from; i < args.positional.size(); ++i) out.positional.push_back(args.positional[i]);
  out.named = args.named;
  return out;
}

Value map_attribute(Interp& in, const Value& v, const Args& args) {
  const auto a = args.bind("map", {"attribute", "default"}, 1);
  std::vector<Value> out;
  for (const Value& item : in.iterate(v)) out.push_back(in.path(item, *a[0], a[1]));
  return in.list(std::move(out), ListKind::kGenerator);
}

Value map(Interp& in, const Value& v, const Args& args) {
  if (!truthy(v)) return in.list({}, ListKind::kGenerator);  // none and the like count as empty, in jinja2 too
  if (args.positional.empty()) return map_attribute(in, v, args);
  const std::string& name = text_arg(args.positional[0], "filter name").str();
  const Filter filter = find_filter(name);
  if (!filter) fail(ErrorKind::kUnsupported, "no filter named '{}'", name);
  const Args rest = tail(args, 1);
  std::vector<Value> out;
  for (const Value& item : in.iterate(v)) out.push_back(filter(in, item, rest));
  return in.list(std::move(out), ListKind::kGenerator);
}

// Keeps the items for which the test equals `wanted`. With by_attribute the first argument names what is tested.
Value choose(Interp& in, const Value& v, const Args& args, bool wanted, bool by_attribute) {
  if (!truthy(v)) return in.list({}, ListKind::kGenerator);
  if (by_attribute && args.positional.empty()) fail("an attribute name is needed");
  const size_t test_at = by_attribute ? 1 : 0;
  Test test = nullptr;
  if (args.positional.size() > test_at) {
    const std::string& name = text_arg(args.positional[test_at], "test name").str();
    test = find_test(name);
    if (!test) fail(ErrorKind::kUnsupported, "no test named '{}'", name);
  }
  const Args rest = tail(args, test_at + 1);
  std::vector<Value> out;
  for (Value& item : in.iterate(v)) {
    in.charge(1);
    const Value tested = by_attribute ? in.path(item, args.positional[0]) : item;
    if ((test ? test(in, tested, rest) : truthy(tested)) == wanted) out.push_back(std::move(item));
  }
  return in.list(std::move(out), ListKind::kGenerator);
}

Value select(Interp& in, const Value& v, const Args& args) { return choose(in, v, args, true, false); }
Value reject(Interp& in, const Value& v, const Args& args) { return choose(in, v, args, false, false); }
Value selectattr(Interp& in, const Value& v, const Args& args) { return choose(in, v, args, true, true); }
Value rejectattr(Interp& in, const Value& v, const Args& args) { return choose(in, v, args, false, true); }

}  // namespace

std::span<const Named<Filter>> select_filters() {
  static constexpr Named<Filter> kTable[] = {
      {"map", map}, {"select", select}, {"reject", reject}, {"selectattr", selectattr}, {"rejectattr", rejectattr}};
  return kTable;
}

Filter find_filter(std::string_view name) {
  for (const auto& table : {text_filters(), sequence_filters(), select_filters()}) {
    if (const Filter filter = find_named(table, name)) return filter;
  }
  return nullptr;
}

}  // namespace vayu::jinja
