#include <nlohmann/json.hpp>

#include "apps/client/http_client.h"
#include "apps/client/openai_api.h"
#include "apps/profile.h"

namespace vayu::bench {
namespace {

using nlohmann::ordered_json;
using std::chrono::milliseconds;

constexpr milliseconds kBesideTheSteps(60'000);  // for records and answer, beside the time-out that the server keeps

// Throws what the JSON library throws where a field is missing or of another type.
LiveProfile read_profile(const ordered_json& answer) {
  LiveProfile live;
  live.model = answer.at("model").get<std::string>();
  live.table = {.device = answer.at("device").get<std::string>(),
                .num_steps = answer.at("steps").size(),
                .tokens = answer.at("tokens").get<double>(),
                .rows = answer.at("rows").get<double>(),
                .step_us = answer.at("step_us").get<double>(),
                .busy_us = answer.at("busy_us").get<double>()};
  for (const ordered_json& kernel : answer.at("kernels")) {
    live.table.kernels.push_back({kernel.at("name").get<std::string>(), kernel.at("calls").get<double>(),
                                  kernel.at("own_us").get<double>(), kernel.at("us").get<double>()});
  }
  if (answer.at("message").is_string()) live.message = answer.at("message").get<std::string>();
  if (answer.contains("trace")) live.trace = answer.at("trace").dump();
  return live;
}

}  // namespace

Result<LiveProfile> profile_server(const LiveProfileOptions& o) {
  VAYU_ASSIGN_OR_RETURN(const client::Url url, client::parse_url(o.url));
  VAYU_ASSIGN_OR_RETURN(client::HttpTarget resolved, client::resolve(url, o.api_key));
  client::BlockingClient server(std::make_shared<const client::HttpTarget>(std::move(resolved)));
  const ordered_json body = {{"steps", o.steps}, {"timeout_s", o.timeout_s}, {"trace", o.trace}};
  const milliseconds patience(static_cast<int64_t>(o.timeout_s * 1000));
  VAYU_ASSIGN_OR_RETURN(
      const client::HttpResponse response,
      server.fetch({.method = "POST", .path = "/debug/profile", .body = body.dump()}, patience + kBesideTheSteps));
  if (response.status != 200) return client::http_error(response);
  try {
    return read_profile(ordered_json::parse(response.body));
  } catch (const ordered_json::exception& exception) {
    return make_error(ErrorKind::kCorrupt, "{} answers with something else than a profile: {}", o.url,
                      exception.what());
  }
}

}  // namespace vayu::bench
