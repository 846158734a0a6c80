#include "apps/bench/kernel_baseline.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace vayu::bench {
namespace {

using nlohmann::json;

// {"model", "geometry": {...}, "context", "shapes": {shape: {operator: {"eager_us", "best_us", ...}}}}; a shape also
// holds "experts_touched", a number.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  template <class... Args>
  Error fail(ErrorKind kind, const std::string& field, fmt::format_string<Args...> format, Args&&... args) const {
    Error error =
        make_error(kind, "--baseline {}: {} {}", file_, field, fmt::format(format, std::forward<Args>(args)...));
    error.field = field;
    return error;
  }

  Result<const json*> find(const json& object, const std::string& path, const char* name) const {
    const auto it = object.find(name);
    if (it != object.end()) return &*it;
    return fail(ErrorKind::kCorrupt, path + name,
                "is missing; write the file anew with this version's tools/bench_layer_baseline.py");
  }
  Result<const json*> object(const json& parent, const std::string& path, const char* name) const {
    VAYU_ASSIGN_OR_RETURN(const json* value, find(parent, path, name));
    if (!value->is_object()) return wrong_type(path + name, "an object", *value);
    return value;
  }
  Result<double> number(const json& parent, const std::string& path, const char* name) const {
    VAYU_ASSIGN_OR_RETURN(const json* value, find(parent, path, name));
    if (!value->is_number()) return wrong_type(path + name, "a number", *value);
    const double number = value->get<double>();
    if (!std::isfinite(number) || number < 0) return fail(ErrorKind::kCorrupt, path + name, "is {}", value->dump());
    return number;
  }
  Status same_number(const json& parent, const std::string& path, const char* name, int64_t wanted) const {
    VAYU_ASSIGN_OR_RETURN(const double found, number(parent, path, name));
    if (found == static_cast<double>(wanted)) return {};
    return fail(ErrorKind::kInvalidArgument, path + name, "is {}, in this run {}", found, wanted);
  }
  Status same_model(const json& file, const std::string& wanted) const {
    VAYU_ASSIGN_OR_RETURN(const json* name, find(file, "", "model"));
    if (!name->is_string()) return wrong_type("model", "a string", *name);
    if (name->get_ref<const std::string&>() == wanted) return {};
    return fail(ErrorKind::kInvalidArgument, "model", "is {}, in this run {}", name->get_ref<const std::string&>(),
                wanted);
  }

 private:
  Error wrong_type(const std::string& field, const char* wanted, const json& value) const {
    return fail(ErrorKind::kCorrupt, field, "must be {}, not {}", wanted, value.type_name());
  }

  const std::string file_;
};

Status check_geometry(const Reader& reader, const json& file, const model::ModelConfig& c) {
  VAYU_ASSIGN_OR_RETURN(const json* geometry, reader.object(file, "", "geometry"));
  const std::pair<const char*, int64_t> fields[] = {{"hidden", c.hidden},
                                                    {"q_heads", c.num_q_heads},
                                                    {"kv_heads", c.num_kv_heads},
                                                    {"head_dim", c.head_dim},
                                                    {"experts", c.moe.router.num_experts},
                                                    {"top_k", c.moe.router.top_k},
                                                    {"expert_ffn", c.moe.expert_ffn},
                                                    {"dense_ffn", c.ffn},
                                                    {"vocab", c.vocab_size}};
  for (const auto& [name, value] : fields) {
    VAYU_RETURN_IF_ERROR(reader.same_number(*geometry, "geometry/", name, value));
  }
  return {};
}

}  // namespace

Result<KernelBaselines> KernelBaselines::parse(const std::string& text, const std::string& file,
                                               const std::string& model, const model::ModelConfig& config,
                                               int32_t context) {
  const Reader reader(file);
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return make_error(ErrorKind::kCorrupt, "--baseline {}: not a JSON object", file);
  VAYU_RETURN_IF_ERROR(reader.same_model(parsed, model));
  VAYU_RETURN_IF_ERROR(check_geometry(reader, parsed, config));
  if (context > 0) VAYU_RETURN_IF_ERROR(reader.same_number(parsed, "", "context", context));
  VAYU_ASSIGN_OR_RETURN(const json* shapes, reader.object(parsed, "", "shapes"));
  KernelBaselines baselines;
  for (const auto& [shape, unused] : shapes->items()) {
    VAYU_ASSIGN_OR_RETURN(const json* operators, reader.object(*shapes, "shapes/", shape.c_str()));
    const std::string path = "shapes/" + shape + "/";
    for (const auto& [op, entry] : operators->items()) {
      if (op == "experts_touched") continue;
      VAYU_ASSIGN_OR_RETURN(const json* times, reader.object(*operators, path, op.c_str()));
      const std::string at = path + op + "/";
      VAYU_ASSIGN_OR_RETURN(const double eager_us, reader.number(*times, at, "eager_us"));
      VAYU_ASSIGN_OR_RETURN(const double best_us, reader.number(*times, at, "best_us"));
      baselines.shapes_[shape][op] = {eager_us, best_us};
    }
  }
  return baselines;
}

Result<KernelBaselines> KernelBaselines::read(const std::string& file, const std::string& model,
                                              const model::ModelConfig& config, int32_t context) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) return make_error(ErrorKind::kIo, "--baseline {}: cannot be read", file);
  return parse(text.str(), file, model, config, context);
}

std::optional<Baseline> KernelBaselines::find(const std::string& shape, const std::string& op) const {
  const auto operators = shapes_.find(shape);
  if (operators == shapes_.end()) return std::nullopt;
  const auto found = operators->second.find(op);
  return found == operators->second.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace vayu::bench
