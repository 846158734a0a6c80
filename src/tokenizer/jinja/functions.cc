// Global functions, and the objects with state: namespace, cycler, joiner and loop.
#include <algorithm>
#include <ctime>

#include "tokenizer/jinja/filters.h"

namespace vayu::jinja {
namespace {

Value range(Interp& in, const Args& args) {
  if (!args.named.empty()) fail("range() takes no named arguments");
  if (args.positional.empty()) fail("range() needs an argument");
  const auto a = args.bind("range", {"start", "stop", "step"});
  int64_t start = 0, stop = int_arg(a[0], 0, "range() bound");
  const int64_t step = int_arg(a[2], 1, "range() step");
  if (a[1]) {
    start = stop;
    stop = int_arg(a[1], 0, "range() bound");
  }
  if (step == 0) fail("range() step must not be zero");
  const __int128 distance = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 stride = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  if (count > kMaxRange) fail(ErrorKind::kTooLarge, "range() of more than {} numbers", kMaxRange);
  std::vector<Value> items;
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) items.push_back(start + i * step);
  Value out = in.list(std::move(items), ListKind::kRange);
  std::copy_n(std::initializer_list<int64_t>{start, stop, step}.begin(), 3, out.list()->range);
  return out;
}

// Entries of dict(...) and namespace(...): those of an optional dict or list of pairs, then the named arguments.
std::vector<std::pair<Value, Value>> entries_of(Interp& in, const Args& args, std::string_view function) {
  std::vector<std::pair<Value, Value>> out;
  if (args.positional.size() > 1) fail("{}() takes at most one positional argument", function);
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.dict()) {
      in.charge_walk(from);
      out = from.dict()->entries;
    } else {
      for (const Value& pair : in.iterate(from)) {
        const std::vector<Value> parts = in.iterate(pair);
        if (parts.size() != 2) fail("{}() needs pairs", function);
        out.emplace_back(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) out.emplace_back(Text(name, true), value);
  return out;
}

Value dict(Interp& in, const Args& args) {
  Dict out;
  for (auto& [key, value] : entries_of(in, args, "dict")) {
    in.charge(key.text() ? 1 : static_cast<int64_t>(out.entries.size()));
    out.set(std::move(key), std::move(value));
  }
  in.charge_bytes(out.entries.size() * 2 * sizeof(Value));
  return make_dict(std::move(out));
}

Value make_namespace(Interp& in, const Args& args) {
  Object* object = in.new_object(Object::Kind::kNamespace);
  for (auto& [key, value] : entries_of(in, args, "namespace")) {
    const std::string name = text_arg(key, "namespace attribute").str();
    in.charge(static_cast<int64_t>(object->attributes.size()));
    auto it = std::find_if(object->attributes.begin(), object->attributes.end(),
                           [&](const auto& attribute) { return attribute.first == name; });
    if (it == object->attributes.end()) {
      object->attributes.emplace_back(name, std::move(value));
    } else {
      it->second = std::move(value);
    }
  }
  return object;
}

Value raise_exception(Interp& in, const Args& args) {
  const auto a = args.bind("raise_exception", {"message"}, 1);
  throw Fault{ErrorKind::kInvalidArgument, in.str(*a[0])->str(), true};
}

Value strftime_now(Interp& in, const Args& args) {
  const std::string& format = text_arg(*args.bind("strftime_now", {"format"}, 1)[0], "format").str();
  if (format.size() > 1000) fail(ErrorKind::kTooLarge, "time format of {} bytes", format.size());
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(16'384, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  if (!valid_utf8(out)) fail("strftime gave text that is not UTF-8");
  return in.text(std::move(out));
}

Value cycler(Interp& in, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) fail("cycler() needs items");
  Object* object = in.new_object(Object::Kind::kCycler);
  object->items = args.positional;
  return object;
}

Value joiner(Interp& in, const Args& args) {
  const auto a = args.bind("joiner", {"sep"});
  Object* object = in.new_object(Object::Kind::kJoiner);
  object->items.push_back(a[0] ? *a[0] : in.text(", ", true));
  return object;
}

Value cycler_next(Interp&, const Value& self, const Args& args) {
  args.bind("next", {});
  Object& cycler = *self.object();
  const Value item = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return item;
}

Value cycler_reset(Interp&, const Value& self, const Args& args) {
  args.bind("reset", {});
  self.object()->position = 0;
  return None{};
}

Loop& live_loop(const Value& self) {
  auto& loop = static_cast<Loop&>(*self.object());
  if (loop.finished) fail("use of a loop variable after its loop");
  return loop;
}

Value loop_cycle(Interp&, const Value& self, const Args& args) {
  const Loop& loop = live_loop(self);
  if (args.positional.empty() || !args.named.empty()) fail("loop.cycle() needs items");
  return args.positional[static_cast<size_t>(loop.index0) % args.positional.size()];
}

Value loop_changed(Interp& in, const Value& self, const Args& args) {
  Loop& loop = live_loop(self);
  Value now = in.list(args.positional, ListKind::kTuple);
  const bool changed = !loop.last_changed || !in.same(*loop.last_changed, now);
  loop.last_changed = std::move(now);
  return changed;
}

Value loop_attribute(Interp& in, Loop& loop, const std::string& name) {
  live_loop(Value(static_cast<Object*>(&loop)));
  if (name == "index") return loop.index0 + 1;
  if (name == "index0") return loop.index0;
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return !in.loop_peek(loop);
  if (name == "length") return in.loop_length(loop);
  if (name == "revindex") return in.loop_length(loop) - loop.index0;
  if (name == "revindex0") return in.loop_length(loop) - loop.index0 - 1;
  if (name == "depth") return int64_t{1};
  if (name == "depth0") return int64_t{0};
  if (name == "previtem") return loop.index0 == 0 ? make_undefined("there is no previous item") : loop.previous;
  if (name == "nextitem") return in.loop_peek(loop) ? loop.ready.front() : make_undefined("there is no next item");
  return make_undefined(fmt::format("loop has no attribute '{}'", name));
}

}  // namespace

Method find_object_method(const Object& object, std::string_view name) {
  if (object.kind == Object::Kind::kCycler) {
    return name == "next" ? cycler_next : name == "reset" ? cycler_reset : Method(nullptr);
  }
  if (object.kind == Object::Kind::kLoop) {
    return name == "cycle" ? loop_cycle : name == "changed" ? loop_changed : Method(nullptr);
  }
  return nullptr;
}

Value object_attribute(Interp& in, Object& object, const std::string& name) {
  if (object.kind == Object::Kind::kLoop) return loop_attribute(in, static_cast<Loop&>(object), name);
  if (object.kind == Object::Kind::kCycler && name == "current") return object.items[object.position];
  for (const auto& [key, value] : object.attributes) {
    if (key == name) return value;
  }
  return make_undefined(fmt::format("namespace has no attribute '{}'", name));
}

Value call_joiner(Interp& in, Object& joiner) {
  if (joiner.position++ == 0) return in.text("", true);
  return joiner.items[0];
}

Function find_function(std::string_view name) {
  static constexpr Named<Function> kTable[] = {
      {"range", range},   {"dict", dict},     {"namespace", make_namespace}, {"raise_exception", raise_exception},
      {"cycler", cycler}, {"joiner", joiner}, {"strftime_now", strftime_now}};
  return find_named(std::span<const Named<Function>>(kTable), name);
}

Value context_value(const std::string& name, const nlohmann::ordered_json& json) {
  static constexpr std::string_view kTokens[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
  if (json.is_string() && std::find(std::begin(kTokens), std::end(kTokens), name) != std::end(kTokens)) {
    return from_json(json, true);
  }
  if (name != "messages" || !json.is_array()) return from_json(json, false);
  // Templates build markers such as '<|' + role + '|>'. A role from this closed list may be part of one.
  static constexpr std::string_view kRoles[] = {"system", "developer", "user",   "assistant",
                                                "tool",   "function",  "ipython"};
  std::vector<Value> messages;
  for (const auto& message : json) {
    Value value = from_json(message, false, 2);
    if (message.is_object() && value.dict()->find(std::string_view("role"))) {
      const Text* role = value.dict()->find(std::string_view("role"))->text();
      if (role && std::find(std::begin(kRoles), std::end(kRoles), role->str()) != std::end(kRoles)) {
        Dict copy = *value.dict();
        copy.depth = 1;
        copy.weight = 1;
        copy.set(Text("role", false), Text(role->str(), true));
        value = make_dict(std::move(copy));
      }
    }
    messages.push_back(std::move(value));
  }
  return make_list(std::move(messages));
}

}  // namespace vayu::jinja
