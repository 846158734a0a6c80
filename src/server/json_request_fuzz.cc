// libFuzzer over request bodies: guarded parse, then every route's parser. The first byte picks the route.
#include <cstdint>

#include "base/check.h"
#include "server/api_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace vayu::server;
  if (size == 0) return 0;
  const RequestRules rules{.vocab_size = 49152, .max_context = 8192, .debug_hooks = true};
  const auto body = parse_json({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!body.ok()) return 0;
  (void)dump(*body);
  const auto check = [](const GenerateOptions& options) {
    VAYU_CHECK(options.n >= 1 && options.sampling.top_k >= 0 && options.sampling.temperature >= 0);
    for (const auto& [token, bias] : options.sampling.logit_bias) VAYU_CHECK(token >= 0 && bias >= -100 && bias <= 100);
    for (const std::string& stop : options.stop) VAYU_CHECK(!stop.empty());
  };
  switch (data[0] % 4) {
    case 0: {
      const auto request = parse_completion(*body, rules);
      if (request.ok()) {
        check(request->options);
        VAYU_CHECK(!request->prompts.empty());
      }
      break;
    }
    case 1: {
      const auto request = parse_chat(*body, rules);
      if (request.ok()) {
        check(request->options);
        for (const Json& message : request->input.messages) VAYU_CHECK(message["content"].is_string());
      }
      break;
    }
    case 2:
      (void)parse_tokenize(*body, rules);
      break;
    default:
      (void)parse_detokenize(*body, rules);
  }
  return 0;
}
