#include "telemetry/kernel_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace vayu {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + "\"";
}

std::string event(const std::string& name, int process, uint32_t row, int64_t start_ns, int64_t end_ns) {
  return fmt::format(R"({{"ph":"X","name":{},"pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f}}})", quoted(name), process, row,
                     start_ns * 1e-3, (end_ns - start_ns) * 1e-3);
}

}  // namespace

std::vector<KernelTotal> kernel_totals(const std::vector<KernelRecord>& records) {
  std::map<std::string, KernelTotal> by_name;
  int64_t until = INT64_MIN;
  for (const KernelRecord& record : records) {
    KernelTotal& total = by_name[record.name];
    total.name = record.name;
    ++total.calls;
    total.us += (record.end_ns - record.start_ns) * 1e-3;
    total.own_us += std::max<int64_t>(0, record.end_ns - std::max(record.start_ns, until)) * 1e-3;
    until = std::max(until, record.end_ns);
  }
  std::vector<KernelTotal> totals;
  for (auto& [name, total] : by_name) totals.push_back(std::move(total));
  std::stable_sort(totals.begin(), totals.end(),
                   [](const KernelTotal& a, const KernelTotal& b) { return a.own_us > b.own_us; });
  return totals;
}

int64_t busy_ns(const std::vector<KernelRecord>& records) {
  int64_t busy = 0, until = INT64_MIN;
  for (const KernelRecord& record : records) {
    const int64_t from = std::max(record.start_ns, until);
    busy += std::max<int64_t>(0, record.end_ns - from);
    until = std::max(until, record.end_ns);
  }
  return busy;
}

std::string chrome_trace(const std::vector<KernelRecord>& records, const std::vector<HostSpan>& spans) {
  std::string out =
      "{\"traceEvents\":[\n"
      R"({"ph":"M","name":"process_name","pid":0,"args":{"name":"host"}},)"
      "\n"
      R"({"ph":"M","name":"process_name","pid":1,"args":{"name":"device"}})";
  int64_t origin = INT64_MAX;
  for (const KernelRecord& record : records) origin = std::min(origin, record.start_ns);
  for (const HostSpan& span : spans) origin = std::min(origin, span.start_ns);
  for (const HostSpan& s : spans) out += ",\n" + event(s.name, 0, 0, s.start_ns - origin, s.end_ns - origin);
  for (const KernelRecord& r : records)
    out += ",\n" + event(r.name, 1, r.stream, r.start_ns - origin, r.end_ns - origin);
  return out + "\n]}\n";
}

std::string short_kernel_name(const std::string& demangled) {
  // The parameter list is the first bracket outside of <>; return type and scopes lie before the name.
  size_t end = demangled.size(), begin = 0;
  int depth = 0;
  for (size_t i = 0; i < demangled.size(); ++i) {
    const char c = demangled[i];
    if (depth == 0 && demangled.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
      continue;
    }
    if (c == '<') ++depth;
    if (c == '>') --depth;
    if (depth > 0) continue;
    if (c == '(') {
      end = i;
      break;
    }
    if (c == ' ' || c == ':') begin = i + 1;
  }
  return begin < end ? demangled.substr(begin, end - begin) : demangled;
}

}  // namespace vayu
