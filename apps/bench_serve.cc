// vayu bench serve: a client-side benchmark of any OpenAI server.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "apps/bench/bench_report.h"
#include "apps/bench/bench_runner.h"
#include "apps/bench/prompt_maker.h"
#include "apps/client/http_client.h"
#include "apps/client/openai_api.h"
#include "apps/commands.h"
#include "apps/run_record.h"

namespace vayu {

namespace {

using nlohmann::ordered_json;

struct BenchServeFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string api_key;
  std::string endpoint = "completions";
  std::string prompt_file;
  std::string json_path;
  bool text_prompts = false;
  bool json_requests = false;
  bool sla_exit_code = false;
  bool no_progress = false;
  double timeout_s = 600;
  std::vector<int32_t> token_range = {1000, 30000};
  int32_t input_len = 512;
  int32_t shared_prefix_len = 0;
  bench::RunOptions run;
  bench::SlaLimits sla;
};

enum ExitCode { kDone = 0, kFailed = 1, kUsage = 2, kSlaMissed = 3 };

// A stream is a file descriptor: takes as many as the system gives.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

// Token counts by the server's own /tokenize, with the chat template when the prompt will go through it.
bench::TokenCounter make_counter(client::BlockingClient& server, const BenchServeFlags& flags) {
  return [&server, &flags](const std::string& text) -> Result<int64_t> {
    nlohmann::json body = {{"model", flags.run.model}};
    if (flags.run.chat) {
      body["messages"] = {{{"role", "user"}, {"content", text}}};
      body["add_generation_prompt"] = true;
    } else {
      body["prompt"] = text;
    }
    VAYU_ASSIGN_OR_RETURN(const client::HttpResponse response, server.fetch({"POST", "/tokenize", body.dump()}));
    if (response.status != 200) {
      Error error = client::http_error(response);
      error.message = "text prompts of exact length need the server's /tokenize: " + error.message;
      return error;
    }
    const auto answer = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object() || !answer.contains("count") || !answer["count"].is_number_integer()) {
      return make_error(ErrorKind::kCorrupt, "/tokenize gives no count");
    }
    return answer["count"].get<int64_t>();
  };
}

Result<std::unique_ptr<bench::PromptSource>> make_prompts(client::BlockingClient& server,
                                                          const BenchServeFlags& flags) {
  if (!flags.prompt_file.empty()) return bench::read_prompt_file(flags.prompt_file, flags.run.chat);
  if (flags.run.chat || flags.text_prompts) {
    return bench::make_exact_texts(flags.run.num_requests + flags.run.num_warmup, flags.input_len,
                                   flags.shared_prefix_len, flags.run.chat, flags.run.seed,
                                   make_counter(server, flags));
  }
  return bench::make_random_ids({.length = flags.input_len,
                                 .shared_prefix_length = flags.shared_prefix_len,
                                 .first_id = flags.token_range[0],
                                 .end_id = flags.token_range[1],
                                 .seed = flags.run.seed});
}

Status check_flags(BenchServeFlags& flags) {
  flags.run.chat = flags.endpoint == "chat";
  flags.run.timeout = std::chrono::milliseconds(static_cast<int64_t>(flags.timeout_s * 1000));
  flags.run.show_progress = !flags.no_progress && isatty(STDERR_FILENO) != 0;
  if (flags.shared_prefix_len > flags.input_len) {
    return field_error("shared-prefix-len", "{} is more than --input-len {}", flags.shared_prefix_len, flags.input_len);
  }
  if (flags.token_range[0] < 0 || flags.token_range[0] >= flags.token_range[1]) {
    return field_error("token-range", "needs 0 <= LOW < HIGH");
  }
  return {};
}

ordered_json config_json(const BenchServeFlags& flags) {
  return {{"url", flags.url},
          {"model", flags.run.model},
          {"endpoint", flags.endpoint},
          {"prompts", !flags.prompt_file.empty()             ? flags.prompt_file
                      : flags.run.chat || flags.text_prompts ? "text"
                                                             : "token ids"},
          {"num_requests", flags.run.num_requests},
          {"warmup", flags.run.num_warmup},
          {"concurrency", flags.run.request_rate > 0 ? ordered_json() : ordered_json(flags.run.concurrency)},
          {"request_rate", flags.run.request_rate > 0 ? ordered_json(flags.run.request_rate) : ordered_json()},
          {"input_len", flags.prompt_file.empty() ? ordered_json(flags.input_len) : ordered_json()},
          {"output_len", flags.run.output_len},
          {"shared_prefix_len", flags.shared_prefix_len},
          {"ignore_eos", flags.run.ignore_eos},
          {"temperature", flags.run.temperature},
          {"seed", flags.run.seed}};
}

Status write_json(const BenchServeFlags& flags, const std::string& started_at, const bench::RunResult& result,
                  const bench::Report& report) {
  ordered_json out = {{"name", "bench_serve"},
                      {"command", command_line()},
                      {"started_at", started_at},
                      {"hardware", hardware()},
                      {"config", config_json(flags)}};
  out.update(bench::to_json(report, flags.sla));
  if (flags.json_requests) {
    for (const bench::RequestRecord& record : result.records) out["requests"].push_back(bench::to_json(record));
  }
  const std::string text = out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
  if (flags.json_path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return {};
  }
  std::ofstream file(flags.json_path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return make_error(ErrorKind::kIo, "cannot write {}", flags.json_path);
  return {};
}

Result<int> bench_serve(BenchServeFlags& flags) {
  VAYU_RETURN_IF_ERROR(check_flags(flags));
  VAYU_ASSIGN_OR_RETURN(const client::Url url, client::parse_url(flags.url));
  VAYU_ASSIGN_OR_RETURN(client::HttpTarget resolved, client::resolve(url, flags.api_key));
  const auto target = std::make_shared<const client::HttpTarget>(std::move(resolved));
  client::BlockingClient server(target);
  if (flags.run.model.empty()) {
    VAYU_ASSIGN_OR_RETURN(flags.run.model, client::first_model(server));
  }
  VAYU_ASSIGN_OR_RETURN(const auto prompts, make_prompts(server, flags));
  raise_file_limit();
  const std::string started_at = utc_now();
  const bench::RunResult result = bench::run_requests(target, *prompts, flags.run);
  const bench::Report report = bench::make_report(result, flags.run, flags.sla);
  if (flags.json_path != "-") std::fputs(bench::format_table(report, flags.sla).c_str(), stdout);
  if (!flags.json_path.empty()) VAYU_RETURN_IF_ERROR(write_json(flags, started_at, result, report));
  if (report.num_complete == 0) return kFailed;
  return flags.sla_exit_code && !report.sla_met.value_or(true) ? kSlaMissed : kDone;
}

void add_load_options(CLI::App& app, BenchServeFlags& flags) {
  auto* concurrency = app.add_option("--concurrency,--max-concurrency", flags.run.concurrency,
                                     "Requests in flight at any time (closed loop)")
                          ->check(CLI::Range(1, 100000));
  app.add_option("--request-rate", flags.run.request_rate,
                 "Poisson arrivals a second (open loop), in place of --concurrency")
      ->check(CLI::PositiveNumber)
      ->excludes(concurrency);
  app.add_option("--num-requests,--num-prompts", flags.run.num_requests, "Requests to measure")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  app.add_option("--warmup", flags.run.num_warmup, "Requests sent first and not counted")
      ->check(CLI::Range(0, 1000000));
  app.add_option("--timeout", flags.timeout_s, "Seconds one request may take")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
}

void add_prompt_options(CLI::App& app, BenchServeFlags& flags) {
  app.add_option("--endpoint", flags.endpoint, "completions or chat")
      ->check(CLI::IsMember({"completions", "chat"}))
      ->capture_default_str();
  app.add_option("--input-len", flags.input_len, "Prompt tokens, exact; for chat with the template's own")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  app.add_option("--output-len", flags.run.output_len, "max_tokens; exact unless --no-ignore-eos")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  app.add_option("--shared-prefix-len", flags.shared_prefix_len,
                 "Tokens at the front that all prompts share (text prompts: to within the template's tokens)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--prompt-file", flags.prompt_file, "One prompt a line, or JSON lines with prompt or messages");
  app.add_flag("--text-prompts", flags.text_prompts,
               "Text on /v1/completions, sized by /tokenize, in place of token ids");
  app.add_option("--token-range", flags.token_range, "Random ids are drawn from LOW (included) to HIGH")
      ->expected(2)
      ->capture_default_str();
  app.add_flag("--ignore-eos,!--no-ignore-eos", flags.run.ignore_eos, "Go on past the end token (default on)");
  app.add_option("--temperature", flags.run.temperature, "0 is greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_option("--seed", flags.run.seed, "Of prompts and arrivals")->capture_default_str();
}

void add_report_options(CLI::App& app, BenchServeFlags& flags) {
  app.add_option("--json", flags.json_path, "Write all figures to this file; - prints them in place of the table");
  app.add_flag("--json-requests", flags.json_requests, "Put every request into the file too");
  app.add_option("--sla-ttft-ms", flags.sla.ttft_ms, "Largest TTFT at the SLA's percentile")
      ->check(CLI::PositiveNumber);
  app.add_option("--sla-itl-ms", flags.sla.itl_ms, "Largest gap between tokens at the SLA's percentile")
      ->check(CLI::PositiveNumber);
  app.add_option("--sla-percentile", flags.sla.percentile, "Percentile of the SLA")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app.add_flag("--sla-exit-code", flags.sla_exit_code, "Exit with 3 when the SLA is missed");
  app.add_flag("--no-progress", flags.no_progress, "No progress line");
}

}  // namespace

void add_bench_command(CLI::App& root, int& exit_code) {
  CLI::App* bench = root.add_subcommand("bench", "Benchmarks");
  bench->require_subcommand(1);
  add_bench_kernels_command(*bench, exit_code);
  add_bench_steps_command(*bench, exit_code);
  CLI::App* serve = bench->add_subcommand("serve", "Measure a running OpenAI server from the client's side");
  auto flags = std::make_shared<BenchServeFlags>();
  serve->add_option("--url,--base-url", flags->url, "Server")->capture_default_str();
  serve->add_option("--model", flags->run.model, "Default: the first of /v1/models");
  serve->add_option("--api-key", flags->api_key, "Sent as a bearer token")->envname("VAYU_API_KEY");
  add_load_options(*serve, *flags);
  add_prompt_options(*serve, *flags);
  add_report_options(*serve, *flags);
  serve->callback([flags, &exit_code] {
    const Result<int> result = bench_serve(*flags);
    if (result.ok()) {
      exit_code = *result;
      return;
    }
    const Error& error = result.error();
    std::fprintf(stderr, "vayu bench serve: %s%s%s\n", error.field.empty() ? "" : error.field.c_str(),
                 error.field.empty() ? "" : ": ", error.message.c_str());
    exit_code = error.kind == ErrorKind::kInvalidArgument ? kUsage : kFailed;
  });
}

}  // namespace vayu
